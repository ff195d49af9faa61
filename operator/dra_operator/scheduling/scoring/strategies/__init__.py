"""Placement strategies: which of the nodes that fit wastes least, one file for each."""
