"""One file for each policy: which of the nodes that have room a pod gets, and which GPU there."""
