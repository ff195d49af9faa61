"""Runs containers: their states, restarts, probes and hooks, on a runtime whose containers are processes."""
