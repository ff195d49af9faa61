"""Reads a live cluster, or a snapshot of one, into one value."""
