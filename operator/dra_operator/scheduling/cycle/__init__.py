"""The phases of one attempt to place a pod, under the names of the scheduling framework."""
