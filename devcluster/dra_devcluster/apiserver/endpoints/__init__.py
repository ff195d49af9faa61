"""The targets of URLs (objects, their sub-resources, and kinds that are only asked) and the form of answers."""
