"""Versions of the registration contract."""
