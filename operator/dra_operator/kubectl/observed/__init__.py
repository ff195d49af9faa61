"""The cluster as one read found it, and the pipeline over it. Pure."""
