"""Log lines that people read: time, level, where, what."""

from __future__ import annotations

import logging
import sys

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_LEFTOVERS_OF_KOPF = (
    "closing of asynchronous generator <async_generator object infinite_watch",
    "kopf/_cogs/aiokits/aiotasks.py",
)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Not what asyncio says of tasks and watch generators that a failing Kopf leaves behind: Kopf told the failure."""
    return not any(leftover in record.getMessage() for leftover in _LEFTOVERS_OF_KOPF)


def configure_logs(verbosity: int) -> None:
    """0: our own information and everybody's warnings; 1: Kopf's information too; 2: everything."""
    logging.basicConfig(stream=sys.stderr, format=_FORMAT, level=logging.WARNING, force=True)
    logging.getLogger("dra_operator").setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
    logging.getLogger("kopf").setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])
    logging.getLogger("asyncio").addFilter(_is_worth_telling)
