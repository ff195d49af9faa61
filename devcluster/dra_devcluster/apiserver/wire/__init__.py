"""Requests and answers on the wire: the URL, bodies in JSON and protobuf, and their count."""
