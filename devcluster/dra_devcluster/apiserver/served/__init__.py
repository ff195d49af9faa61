"""What the server serves: its resources, versions and gates, and the documents that list them."""
