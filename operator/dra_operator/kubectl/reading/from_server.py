"""What a command reads from the API server."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from dra_kube import Connection, ConnectionSettingsError, Headers, KubeError, connection, for_people, namespace_of

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.observed.observed import Observed

from .live import observe

NO_LIMIT_SECONDS: Final = 1e8


def read_server(options: argparse.Namespace) -> Observed:
    """What there is now. Raises Problem."""
    namespace = getattr(options, "namespace", None) or namespace_of(options.kubeconfig, options.context)
    try:
        with _without_warnings():
            return asyncio.run(observe(where(options), options.request_timeout or NO_LIMIT_SECONDS, namespace))
    except KubeError as error:
        code = ExitCode.USAGE if isinstance(error, ConnectionSettingsError) else ExitCode.FAILED
        raise Problem(for_people(error), code) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The answer says what is malformed."""
    logger = logging.getLogger("dra_operator")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def where(options: argparse.Namespace) -> Connection:
    """The server, and in whose name it is asked. Raises KubeError."""
    found = connection(options.kubeconfig, options.context)
    if options.as_user is None:
        return found
    groups: Headers = tuple(("Impersonate-Group", group) for group in options.as_group)
    return replace(found, impersonation=(("Impersonate-User", options.as_user), *groups))
