"""What rules between pods look at: pods by node, the terms that they carry, topology domains."""
