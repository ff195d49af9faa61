"""From the API server to the view: the kinds, the initial list, malformed objects, the language of selectors."""
