"""Leader election over Lease objects: the decision, and the writes."""
