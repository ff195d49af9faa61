"""The newest version of each object, and look-ups over them."""
