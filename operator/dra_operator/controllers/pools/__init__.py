"""Answers questions about pools of devices."""
