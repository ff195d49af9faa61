"""Gangs: pods that get devices and nodes together, or not at all."""
