"""The version of the distribution; the wheel, ``--version`` of every command and the image's tag follow it."""

VERSION = "0.1.0"
