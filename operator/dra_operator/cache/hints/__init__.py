"""Which keys a change concerns (kube-scheduler's queueing hints)."""
