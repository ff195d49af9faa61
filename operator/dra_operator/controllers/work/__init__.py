"""Queues, workers and the dispatcher: which key is handled when, and how often."""
