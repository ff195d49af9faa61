"""What a pod asks for: its fields, and the values to which they refer."""
