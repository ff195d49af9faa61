"""What can be set on the operator: the table, its reading, and what is made of it."""
