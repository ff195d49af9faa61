"""The index over nodes: which nodes can hold a request, and on which an attempt may end with an error."""
