"""The processes of containers: their start in namespaces, their output, and its readers."""
