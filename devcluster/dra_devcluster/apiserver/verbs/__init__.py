"""The verbs on objects, for every kind alike: read, watch, create, change, patch, delete."""
