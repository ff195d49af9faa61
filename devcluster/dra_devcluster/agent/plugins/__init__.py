"""Finds the plugins of drivers, registers them, calls them, and follows what they say about their devices."""
