"""Requests over HTTP: connections, writes that may be repeated, watch streams."""
