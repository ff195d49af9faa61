"""Versions of the contract of ``kubectl dra fit --serve-grpc``."""
