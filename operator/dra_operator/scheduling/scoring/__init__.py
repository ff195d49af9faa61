"""Which of the nodes that fit a pod would rather have: one file for each score."""
