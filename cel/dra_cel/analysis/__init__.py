"""What a tree says before it runs: its types, its faults, its cost in the worst case, what it names."""
