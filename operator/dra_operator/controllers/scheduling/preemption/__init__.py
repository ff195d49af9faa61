"""How pods of lower priority end so that a pod fits."""
