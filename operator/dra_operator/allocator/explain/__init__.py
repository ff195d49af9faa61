"""Explains a problem without solution: the refusal, and its nearest fix."""
