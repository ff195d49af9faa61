"""Brings objects from the API server into the cache: kinds, the initial list, malformed objects, the language of
selectors."""
