"""Versions of the podresources contract."""
