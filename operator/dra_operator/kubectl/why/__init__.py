"""Why a pod or claim waits, and changes that would help. Pure."""
