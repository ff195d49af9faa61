"""What a search may leave out, and why that changes neither the first solution nor the first error."""
