"""``kubectl dra topology``: the devices of a node as a tree, in text or as a picture. Pure."""
