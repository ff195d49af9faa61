"""``dra-operator simulate``: what the allocator would do, without a cluster.

There are three ways. ``simulate FILE`` answers a file of cases (see ``cases``) with one JSON line each, and
``simulate -`` a stream of them. ``simulate -f slices.yaml -f claim.yaml`` says for Kubernetes objects which devices
each node would give, or why not. ``simulate --trace pods.csv --nodes nodes.csv`` says how full each policy makes a
cluster (``trace``), and ``simulate --trace snapshot.yaml`` how a cluster's last week would have been
(``replay``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from dra_api.console import not_installed, printable
from dra_api.releases.gates import GateError
from dra_api.releases.release import BUILT, NEWEST, Release
from dra_operator.allocator import (
    DEVICE_ORDERS,
    AllocationError,
    GaveUp,
    Semantics,
)
from dra_operator.commands.case_files import JSON, add_cases_argument, answer_all, read_cases
from dra_operator.commands.files_argument import add_files_argument
from dra_operator.commands.object_files import BadInput, is_snapshot, read_objects, read_text
from dra_operator.commands.simulated.cluster import simulated
from dra_operator.controllers.scheduling.mix import Asked, MixError, read_mix
from dra_operator.gates import REMEDY, features_of, parse_gates
from dra_operator.scheduling import PLACEMENT_STRATEGIES

from dra_simulator.arguments import add_trace_arguments, given_without_trace
from dra_simulator.attempts import SimulatedAttempt, attempts
from dra_simulator.cases import OUTCOMES, answer, read_case
from dra_simulator.comparison import compared, table
from dra_simulator.report import document, report

SEMANTICS: Final[dict[str, Semantics]] = {"documented": Semantics(), "reference": Semantics.reference()}
EXTRA: Final = frozenset({"numpy", "scipy"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_cases_argument(parser)
    parser.add_argument(
        "--semantics",
        choices=SEMANTICS,
        help="what decides where Kubernetes and its documentation differ "
        "(default: reference for cases with an implementation, otherwise documented)",
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="decide each case N times and time it")
    add_files_argument(parser, "Kubernetes objects")
    _add_output(parser)
    _add_cluster(parser)
    _add_placement(parser)
    add_trace_arguments(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sequential", action="store_true", help="with -f: each pod finds what the pods before it have left"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "csv"),
        default="text",
        help="with -f or --trace: for people, or for programs; csv: only with --trace",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    """The cluster in which is decided: its release, gates and nodes."""
    parser.add_argument(
        "--kubernetes-version",
        choices=BUILT,
        help=f"the release by whose rules is decided, with -f also by its feature gates (default: {NEWEST})",
    )
    parser.add_argument(
        "--feature-gates", default="", metavar="A=true,B=false", help="with -f: as given to the operator"
    )
    parser.add_argument(
        "--node", action="append", default=[], help="node to try; repeatable (default: all in the files)"
    )


def _add_placement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--placement-strategy", choices=PLACEMENT_STRATEGIES, help="with -f: as given to the operator (first-fit)"
    )
    parser.add_argument("--device-order", choices=DEVICE_ORDERS, help="with -f: as given to the operator (reference)")
    parser.add_argument(
        "--placement-mix", metavar="FILE", help="with -f: as given to the operator; without: the pods in the files"
    )
    parser.add_argument(
        "--compare-strategies",
        action="store_true",
        help="with -f, such as a snapshot: how many of the pods each placement strategy finds room for",
    )


def run(options: argparse.Namespace) -> int:
    """Answer; 0 when everything could be answered, 1 when something could not, 2 for unusable input.

    The allocator gave up there, or the files lack a claim or template of a pod.
    """
    try:
        if options.trace is not None:
            return _answer_trace(options)
        if unused := given_without_trace(options):
            raise BadInput(f"{unused[0]}: only with --trace FILE")
        _check_combination(options)
        semantics = SEMANTICS.get(options.semantics)
        release = BUILT.get(options.kubernetes_version, NEWEST)
        if options.file:
            return _answer_objects(options, release, semantics or Semantics())
        return _answer_file(options.cases, options.repeat, release, semantics)
    except (BadInput, AllocationError) as error:
        print(printable(f"dra-operator simulate: {error}"), file=sys.stderr)
        return 2
    except GateError as error:
        print(f"dra-operator simulate: --feature-gates: {error}; {REMEDY}", file=sys.stderr)
        return 2


def _check_combination(options: argparse.Namespace) -> None:
    """Raise BadInput for options that do not go together."""
    if bool(options.cases) == bool(options.file):
        raise BadInput("give one of: a file of cases, Kubernetes objects with -f FILE, pods with --trace FILE")
    if options.output == "csv":
        raise BadInput("-o csv: only with --trace FILE; choose text or json")
    if options.node and not options.file:
        raise BadInput("--node: only for Kubernetes objects (-f FILE); a file of cases names its nodes itself")
    if options.sequential and not options.file:
        raise BadInput("--sequential: only for Kubernetes objects (-f FILE); each case stands for itself")
    if options.feature_gates and not options.file:
        raise BadInput("--feature-gates: only for Kubernetes objects (-f FILE); a case names its features itself")
    if (options.placement_strategy or options.device_order or options.placement_mix) and not options.file:
        raise BadInput("--placement-strategy, --device-order, --placement-mix: only for Kubernetes objects (-f)")
    if options.compare_strategies and (not options.file or options.node or options.output != "text"):
        raise BadInput("--compare-strategies: only for Kubernetes objects (-f FILE), without --node and -o")
    if options.repeat < 1:
        raise BadInput(f"--repeat: expected at least 1, got {options.repeat}")
    if options.repeat > 1 and options.file:
        raise BadInput("--repeat: only for a file of cases, which are timed; -f FILE tells, and times nothing")


def _answer_trace(options: argparse.Namespace) -> int:
    if options.cases or options.file or options.node or options.sequential:
        raise BadInput("--trace: not together with a file of cases, -f, --node or --sequential")
    if is_snapshot(options.trace):
        from dra_simulator.replay import run_replay  # loads what plays many runs at once

        return run_replay(options)
    if options.feature_gates:
        raise BadInput("--feature-gates: of a trace only with a snapshot, in YAML or JSON")
    try:
        from .trace import run_trace
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise BadInput(not_installed(str(error.name), "quality")) from None
    return run_trace(options)


def _answer_objects(options: argparse.Namespace, release: Release, semantics: Semantics) -> int:
    features = features_of(parse_gates(options.feature_gates), release)
    if options.compare_strategies:
        found = compared(
            read_objects(options.file), features=features, semantics=semantics, mix=_mix(options.placement_mix)
        )
        print(*map(printable, table(list(found))), sep="\n")
        return 0
    cluster = simulated(
        read_objects(options.file),
        options.node,
        features=features,
        semantics=semantics,
        strategy=options.placement_strategy or PLACEMENT_STRATEGIES[0],
        device_order=options.device_order or DEVICE_ORDERS[0],
        mix=_mix(options.placement_mix),
    )
    is_open = False

    def watched() -> Iterator[SimulatedAttempt]:
        nonlocal is_open
        for attempt in attempts(cluster, sequential=options.sequential):
            is_open |= attempt.is_open
            yield attempt

    if options.output == "json":
        print(json.dumps(document(watched(), cluster.notes), indent=2))
    else:
        lines = report(watched(), cluster.allocator.inventory, sequential=options.sequential)
        for line in chain(cluster.notes, lines):
            print(printable(line))
    return int(is_open)


def _mix(path: str | None) -> Sequence[Asked]:
    try:
        return read_mix(read_text(path)) if path else ()
    except MixError as error:
        raise BadInput(f"{path}: {error}") from error


def _answer_file(path: str, repeat: int, release: Release, semantics: Semantics | None) -> int:
    cases, _ = read_cases(path)
    gave_up = False

    def answered(where: str, case: JSON) -> JSON:
        nonlocal gave_up
        found = answer(read_case(where, case, release, semantics), repeat)
        gave_up |= any(node["outcome"] == OUTCOMES[GaveUp] for node in found["nodes"])
        return found

    return answer_all("simulate", path, cases, answered) or int(gave_up)
