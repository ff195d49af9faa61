"""Generated from ``api.proto`` beside this file."""
