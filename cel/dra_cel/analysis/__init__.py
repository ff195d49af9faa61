"""A tree before it runs: its types, its faults, its cost in the worst case, and the names in it."""
