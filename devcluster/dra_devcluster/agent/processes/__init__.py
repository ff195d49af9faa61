"""The processes of containers: how they start in namespaces, what they write, and who listens."""
