"""Pods that get devices and nodes together, or not at all: their turns, their attempt, their binding."""
