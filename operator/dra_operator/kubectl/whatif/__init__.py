"""What would be if: pods placed, evicted and moved in a view of the cluster that nobody else has. Pure."""
