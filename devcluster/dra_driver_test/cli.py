"""``dra-driver-test``: checks a DRA driver on this machine, without a cluster.

It plays the kubelet and the API server for the driver, and names faults that would harm pods (docs/driver-test.md).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from dra_api import VERSION
from dra_api.console import finish, needing
from dra_api.releases import BUILT, NEWEST, Release

from dra_driver_test.errors import CHECK_SECONDS

NODE = "driver-test"
RELEASES = [name for name, release in BUILT.items() if release >= Release.V1_36]
"""Earlier ones lack what checks need."""
MOST_JOBS = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. Ctrl-C and the end of its reader end the driver as well."""
    options = parser().parse_args(arguments)
    # gRPC reports every plugin that ends as an error of its own on stderr; it reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return finish(lambda: needing("devcluster", "dra-driver-test", lambda: _execute(options)))


def _execute(options: argparse.Namespace) -> int:
    from .command import execute

    return execute(options)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object, such as {{"color": "red"}}')
    return value


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_JOBS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MOST_JOBS}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """What the command understands; completion scripts are made from it (docs/completion.md)."""
    parser = argparse.ArgumentParser(
        prog="dra-driver-test",
        description="Check a DRA driver on this machine, without a cluster.",
        epilog="Example: %(prog)s -- python my_driver.py --kubelet-dir {kubelet}. In the command, {node}, {kubelet}, "
        "{registry}, {plugins}, {cdi}, {kubeconfig} and {uid} are replaced by what the driver has to use; NODE_NAME "
        "and KUBECONFIG are also set. A command with {uid} can run twice at the same time, for rolling updates. Exit "
        "codes: 0 no check failed, 1 one did, 2 wrong usage, 3 no bench, 4 no check failed, and some were not judged, "
        "since the driver has too few devices.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    parser.add_argument("--list", action="store_true", help="list the checks with their explanations, and run none")
    parser.add_argument(
        "--check", action="append", default=[], dest="checks", metavar="PATTERN",
        help="run the checks that fit, such as 'cdi.*'; may be repeated (all)",
    )  # fmt: skip
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out the checks that take long: less than a minute on an idle machine",
    )
    parser.add_argument(
        "-j", "--jobs", type=_jobs, default=1, metavar="NUMBER",
        help="run so many checks at the same time, each with a node and an instance of the driver of its own (1)",
    )  # fmt: skip
    _add_paths(parser)
    _add_node(parser)
    parser.add_argument(
        "--parameters", type=_object, metavar="JSON", action="append", default=[],
        help="parameters that the driver accepts; may be repeated with others, to see which of two count",
    )  # fmt: skip
    parser.add_argument("--bad-parameters", type=_object, metavar="JSON", help="parameters that the driver refuses")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="after --: the command that starts the driver")
    return parser


def _add_paths(parser: argparse.ArgumentParser) -> None:
    """Folders and files of a running driver, and those to write."""
    for flag, metavar, help_ in (
        ("--registry", "DIR", "of a running driver: folder with its registration socket; no check restarts the driver"),
        ("--cdi-dir", "DIR", "of a running driver: folder to which it writes CDI files"),
        ("--driver", "NAME", "of a running driver: its name, if several have sockets in that folder"),
        (
            "--kubeconfig",
            "FILE",
            "use this API server instead of an embedded one; KUBECONFIG counts with --registry only",
        ),
        ("--json", "FILE", "write the results as JSON"),
        ("--junit", "FILE", "write the results as JUnit XML"),
        ("--log", "FILE", "append what the driver prints to this file (a temporary one)"),
    ):
        parser.add_argument(flag, metavar=metavar, help=help_)


def _add_node(parser: argparse.ArgumentParser) -> None:
    """The node that judges the driver."""
    parser.add_argument("--node-name", metavar="NAME", default=NODE, help=f"name of the node ({NODE})")
    parser.add_argument(
        "--timeout",
        type=float,
        default=CHECK_SECONDS,
        metavar="SECONDS",
        help=f"time for one check ({CHECK_SECONDS:g})",
    )
    parser.add_argument(
        "--kubernetes-version",
        choices=RELEASES,
        default=str(NEWEST),
        help="release of the node that judges the driver, and of the embedded API server (%(default)s)",
    )


if __name__ == "__main__":
    sys.exit(main())
