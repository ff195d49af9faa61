"""Why a pod or claim waits, and what would help. Pure."""
