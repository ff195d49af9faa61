"""What the API server refuses in an object of each kind."""
