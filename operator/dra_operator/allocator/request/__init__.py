"""What claims ask for, independent of any node: checked and compiled once."""
