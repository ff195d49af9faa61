"""The arguments that commands share, under kubectl's names; light, because help and completion load them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

from dra_api.releases import AUTO, BUILT

STRATEGIES: Final = ("first-fit", "emptiest", "best-fit", "packing", "fgd", "frag")
ORDERS: Final = ("reference", "best-fit", "least-loss", "aligned")
FORMATS: Final = ("wide", "json", "yaml", "name", "jsonpath=", "custom-columns=")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the cluster is, or the snapshot of one, and in whose name it is read."""
    where = parser.add_argument_group("the cluster")
    where.add_argument("--from", dest="source", metavar="FILE", help="a snapshot instead of a cluster")
    where.add_argument("--kubeconfig", help="path to the kubeconfig file")
    where.add_argument("--context", help="context of the kubeconfig")
    where.add_argument("--cluster", metavar="NAME", help="cluster of the kubeconfig, instead of the context's")
    where.add_argument("--user", metavar="NAME", help="user of the kubeconfig, instead of the context's")
    where.add_argument("-s", "--server", metavar="URL", help="address of the API server")
    where.add_argument("--token", help="bearer token for the API server")
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


def add_namespace_argument(parser: argparse.ArgumentParser, *, every: bool = False, is_looked_in: bool = True) -> None:
    """One namespace, or with ``every`` all of them.

    ``is_looked_in``: the answer is about one namespace. The other commands take it as kubectl does for kinds without
    namespaces; it says where to look for viewers who may not look in all.
    """
    where = "namespace to look in" if is_looked_in else "namespace to look in if you may not look in all"
    parser.add_argument("-n", "--namespace", help=f"{where} (that of the context)")
    if every:
        parser.add_argument("-A", "--all-namespaces", action="store_true", help="look in all namespaces")


def add_selector_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Labels of ``what``, to choose by and to show."""
    parser.add_argument("-l", "--selector", metavar="LABELS", help=f"labels of {what}, such as app=web,tier!=test")
    parser.add_argument("--show-labels", action="store_true", help=f"a column with the labels of {what}")


def add_output_argument(parser: argparse.ArgumentParser, *more: str, is_table: bool = False) -> None:
    """Add ``--output``. ``more`` are formats that only this command has. ``is_table``: the answer is a list."""
    formats = Formats((*FORMATS, *more))
    parser.add_argument(
        "-o", "--output", type=output_format, choices=formats, metavar="FORMAT", help=f"one of: {', '.join(formats)}"
    )
    if is_table:
        parser.add_argument("--no-headers", action="store_true", help="no line with the titles of columns")
        parser.add_argument(
            "--sort-by", type=json_path, metavar="PATH", help="order of the lines, such as .name or {.since}"
        )


class Formats(tuple[str, ...]):
    """Names of formats; one that ends with ``=`` stands for itself with any value."""

    def __contains__(self, text: object) -> bool:
        head, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        return tuple.__contains__(self, head + equals) and bool(value) == bool(equals)


def add_time_limit_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="limit of working out the answer, such as 5s or 2m, beyond which it says what is known; 0: none (30s)",
    )


def add_watch_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-w", "--watch", action="store_true", help="answer again every 2s, until Ctrl-C")


def add_operator_arguments(parser: argparse.ArgumentParser, *, decides: bool = True) -> None:
    """Add the operator's settings. Without ``decides``, help leaves out settings that do not change the answer."""
    operator = parser.add_argument_group("settings of the operator, where its Lease does not name them")

    def shown(text: str) -> str:
        return text if decides else argparse.SUPPRESS

    operator.add_argument("--scheduler-name", default="dra-scheduler", help="that of the operator (%(default)s)")
    operator.add_argument(
        "--kubernetes-version", default=AUTO, choices=(AUTO, *BUILT), help="Kubernetes release that decides"
    )
    operator.add_argument(
        "--feature-gates", default="", metavar="A=true,B=false", help="changes to the feature gates of that release"
    )
    operator.add_argument("--controllers", default="auto", metavar="LIST", help=shown("controllers that it runs"))
    operator.add_argument(
        "--scoring-strategy", choices=("LeastAllocated", "MostAllocated"), help=shown("which node is best")
    )
    operator.add_argument("--placement-strategy", choices=STRATEGIES, help=shown("which node wastes least"))
    operator.add_argument("--device-order", choices=ORDERS, help=shown("which devices of a node are tried first"))


def given_options(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return what another command has to repeat to read the same cluster in the same name, with the same settings.

    These are the options of ``add_cluster_arguments`` and ``add_operator_arguments`` that are not at their defaults. A
    token is left out: nobody is to see it.
    """
    parser = argparse.ArgumentParser()
    add_cluster_arguments(parser)
    add_operator_arguments(parser)
    names = {"source": "from", "as_user": "as"}
    found: list[tuple[str, str]] = []
    for field, default in vars(parser.parse_args([])).items():
        if (value := getattr(options, field)) != default and field != "token":
            option = f"--{names.get(field, field).replace('_', '-')}"
            found += [(option, str(one)) for one in (value if isinstance(value, list) else [value])]
    return found


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


def origin(text: str) -> str:
    """The origin of a page as browsers write it: scheme, host, and a port unless it is the usual one.

    Pages that are files, such as those of Headlamp's desktop app, have the origin ``null``.
    """
    if text == "null":
        return text
    if re.fullmatch(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the origin of a page, such as http://localhost:4466, or null"
        )
    return text.removesuffix(":443" if text.startswith("https") else ":80")


TEMPLATES: Final = {
    "jsonpath": "a template, as in jsonpath={.items[*].name}",
    "custom-columns": "columns, as in custom-columns=NODE:.node,DEVICE:.name",
}


def output_format(text: str) -> str:
    """Return the value of ``-o``, whose template or columns can be read. Raises ArgumentTypeError."""
    head, _, rest = text.partition("=")
    if head in TEMPLATES and not rest:
        raise argparse.ArgumentTypeError(f"{head} needs {TEMPLATES[head]}")
    if head == "custom-columns":
        for part in rest.split(","):
            if not all(part.partition(":")):
                raise argparse.ArgumentTypeError(f"{part!r} is not a column as TITLE:PATH, such as NODE:.node")
            json_path(part.partition(":")[2])
    elif head == "jsonpath":
        from .jsonpath import Template, TemplateError

        try:
            Template(rest)
        except TemplateError as error:
            raise argparse.ArgumentTypeError(f"jsonpath: {error}") from error
    return text


def json_path(text: str) -> str:
    """Return a path as custom-columns take it, if it can be read. Raises ArgumentTypeError."""
    from .jsonpath import Path, TemplateError

    try:
        Path.of_text(text)
    except TemplateError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a path such as .name: {error}") from error
    return text


def plain_name(*kinds: str) -> Callable[[str], str]:
    """Return an argument type that drops a kind before the name: ``-o name`` prints ``node/NAME``."""

    def name(text: str) -> str:
        kind, slash, rest = text.partition("/")
        return rest if slash and rest and kind.partition(".")[0] in kinds else text

    return name


NODES: Final = ("node", "nodes", "no")
CLASSES: Final = ("deviceclass", "deviceclasses")
DEVICES: Final = ("device", "devices", "pool", "pools", "driver", "drivers")


OWNERS: Final = (
    *("deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob", "podgroup"),
    "replicationcontroller",
)
"""Kinds whose pods ``why`` explains."""
WAYS: Final = ("nodes", "drivers", "classes", "namespaces")
_CALLED: Final = {
    **dict.fromkeys(("no", "node"), "nodes"),
    "driver": "drivers",
    **dict.fromkeys(("class", "deviceclass", "deviceclasses"), "classes"),
    **dict.fromkeys(("ns", "namespace"), "namespaces"),
}
"""Other words for what ``top`` groups by."""


def way(text: str) -> str:
    """Return what to group by for ``top``, under any name that kubectl has for it."""
    return _CALLED.get(text.lower(), text)


def account(text: str) -> str:
    """Return ``NAMESPACE/NAME`` as it is. Raises ArgumentTypeError for anything else."""
    if len([part for part in text.split("/") if part]) != 2 or text.count("/") != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a service account as NAMESPACE/NAME")
    return text


def add_shared_arguments(
    parser: argparse.ArgumentParser,
    *formats: str,
    is_table: bool = False,
    decides: bool = True,
    is_looked_in: bool = False,
) -> None:
    """Add what most commands take: a format, a namespace, the operator's settings, and where to read."""
    add_output_argument(parser, *formats, is_table=is_table)
    add_namespace_argument(parser, is_looked_in=is_looked_in)
    add_operator_arguments(parser, decides=decides)
    add_cluster_arguments(parser)


STATES: Final = ("free", "taken", "shared", "tainted", "drawn", "unusable", "gone")
"""States of devices, as in ``dra_ledger.entries``, which takes long to load."""
