"""Runs the pods of a node, each from its arrival to its removal, and reports their status."""
