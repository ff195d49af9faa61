"""Gives waiting pods a node and devices: one scheduling cycle at a time, and many binding cycles."""
