"""What the process reports of itself: log lines, metrics, requests to the API server."""
