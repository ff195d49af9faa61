"""One module for each command: its arguments, and the call of what answers it."""
