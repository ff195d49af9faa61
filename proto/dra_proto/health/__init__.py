"""Versions of the health contract."""
