"""The process: Kopf wiring, start-up and shutdown, probes, metrics, the command lines."""

from .handlers import register
from .operator import Operator, Options
from .streams import Limits

__all__ = ["Limits", "Operator", "Options", "register"]
