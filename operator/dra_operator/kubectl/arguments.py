"""The arguments that commands share, under kubectl's names; light, because help and completion load them."""

from __future__ import annotations

import argparse
import re
from typing import Final

from dra_api.releases.release import AUTO, BUILT

STRATEGIES: Final = ("first-fit", "emptiest", "best-fit", "packing", "fgd", "frag")
ORDERS: Final = ("reference", "best-fit", "least-loss", "aligned")
FORMATS: Final = ("wide", "json", "yaml", "name")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the cluster is, or the snapshot of one, and in whose name it is read."""
    where = parser.add_argument_group("the cluster")
    where.add_argument("--from", dest="source", metavar="FILE", help="a snapshot instead of a cluster")
    where.add_argument("--kubeconfig", help="path to the kubeconfig file")
    where.add_argument("--context", help="context of the kubeconfig")
    where.add_argument("--as", dest="as_user", metavar="USER", help="user to impersonate")
    where.add_argument(
        "--as-group", action="append", default=[], metavar="GROUP", help="group to impersonate; repeatable"
    )
    where.add_argument(
        "--request-timeout",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="limit of one request, such as 5s or 1m; 0: none (30s)",
    )


def add_namespace_argument(parser: argparse.ArgumentParser, *, every: bool = True) -> None:
    """One namespace, or with ``every`` all of them."""
    parser.add_argument("-n", "--namespace", help="namespace to look in (that of the context)")
    if every:
        parser.add_argument("-A", "--all-namespaces", action="store_true", help="look in all namespaces")


def add_selector_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Labels of ``what``."""
    parser.add_argument("-l", "--selector", metavar="LABELS", help=f"labels of {what}, such as app=web,tier!=test")


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """The format of the answer."""
    parser.add_argument("-o", "--output", choices=FORMATS, help="format of the answer")


def add_time_limit_argument(parser: argparse.ArgumentParser) -> None:
    """How long an answer may be worked out."""
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="limit of working out the answer, such as 5s or 2m, beyond which it says what is known; 0: none (30s)",
    )


def add_watch_argument(parser: argparse.ArgumentParser) -> None:
    """Answer again and again."""
    parser.add_argument("-w", "--watch", action="store_true", help="answer again every 2s, until Ctrl-C")


def add_operator_arguments(parser: argparse.ArgumentParser) -> None:
    """Settings of the operator that decide what fits."""
    operator = parser.add_argument_group("settings of the operator, where its Lease does not name them")
    operator.add_argument("--scheduler-name", default="dra-scheduler", help="that of the operator (%(default)s)")
    operator.add_argument(
        "--kubernetes-version", default=AUTO, choices=(AUTO, *BUILT), help="Kubernetes release that decides"
    )
    operator.add_argument(
        "--feature-gates", default="", metavar="A=true,B=false", help="changes to the feature gates of that release"
    )
    operator.add_argument("--controllers", default="auto", metavar="LIST", help="controllers that it runs")
    operator.add_argument("--scoring-strategy", choices=("LeastAllocated", "MostAllocated"), help="which node is best")
    operator.add_argument("--placement-strategy", choices=STRATEGIES, help="which node wastes least")
    operator.add_argument("--device-order", choices=ORDERS, help="which devices of a node are tried first")


def positive(text: str) -> int:
    """A number of at least 1. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def seconds(text: str) -> float:
    """``30``, ``5s``, ``1m`` in seconds. Raises ArgumentTypeError."""
    if (found := _DURATION.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 5s, 1m or 0")
    return float(found[1]) * _SECONDS[found[2]]


def port(text: str) -> int:
    """The value of ``--port``; 0 is any free one."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535")
    return int(text)
