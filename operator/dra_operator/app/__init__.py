"""The process: Kopf wiring, start-up and shutdown, probes, metrics, the command lines."""

from .handlers import register
from .operator import Operator, Options

__all__ = ["Operator", "Options", "register"]
