"""The depth-first search in reference order: its frames and its state."""
