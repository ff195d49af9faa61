"""Trials: pods placed, evicted and moved in a view of the cluster of their own. Pure."""
