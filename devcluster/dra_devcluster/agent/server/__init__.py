"""What a node serves: logs, ``exec``, ``attach`` and ``port-forward`` for the API server, devices for monitoring."""
