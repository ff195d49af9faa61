"""Brings objects from the API server into the view: kinds, the initial list, malformed objects, the language of
selectors."""
