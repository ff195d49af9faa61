"""Where a command's view of the cluster comes from: the API server, or the file of ``--from``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime

from dra_operator.kubectl.observed.observed import Observed

from .snapshot_file import load


def read(options: argparse.Namespace) -> Observed:
    """What there is. Raises Problem."""
    given = getattr(options, "namespace", None)
    if options.source is not None:
        seen = load(options.source)
        return replace(seen, namespace=given or seen.namespace)
    if getattr(options, "live", None) is False:  # lint: without a cluster unless one is asked for
        return Observed((), datetime.now(UTC), namespace=given or "default")
    from .from_server import read_server  # the client takes a third of a second to import

    return read_server(options)
