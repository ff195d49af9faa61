"""Versions of the dra contract."""
