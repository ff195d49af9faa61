"""What the claims of a pod ask of a node, and whether they can be used."""
