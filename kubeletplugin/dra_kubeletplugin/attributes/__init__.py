"""Attributes that all drivers call by the same name, and what sysfs says of them."""
