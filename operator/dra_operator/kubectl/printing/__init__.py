"""Answers as text for people and programs."""
