"""What drivers publish: slices, pools, what a node sees of them, counters, attribute columns, taints of rules."""
