"""Finds the plugins of drivers, registers them, calls them, and follows the health of their devices."""
