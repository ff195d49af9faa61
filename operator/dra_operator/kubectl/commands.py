"""The commands of ``kubectl dra``: the arguments of each, and how it is carried out.

Help and completion load this module at each TAB, so it stays light: the module that answers is imported once its
command is named. A new command is a function that declares its arguments, a case in ``_answers``, and an entry of
``COMMANDS``.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from dra_api.console import printable

from dra_operator.commands import add_files_argument

from .arguments import (
    CLASSES,
    DEVICES,
    NODES,
    OWNERS,
    STATES,
    WAYS,
    account,
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    add_output_argument,
    add_selector_argument,
    add_shared_arguments,
    add_time_limit_argument,
    add_watch_argument,
    origin,
    plain_name,
    port,
    positive,
    seconds,
    way,
)

if TYPE_CHECKING:
    from .answer import Answer, Problem
    from .observed import Observed

WHY_KINDS: Final = ("pod", "claim", *OWNERS, "workload")
LOOPBACK: Final = "127.0.0.1:8484"
GRPC_LOOPBACK: Final = "127.0.0.1:8485"

Answers = Callable[["Observed", argparse.Namespace], "Answer"]
"""From what was observed and what is asked to the answer; raises Problem."""


def answered(options: argparse.Namespace) -> int:
    """Read the cluster or the snapshot, print the answer, return the exit code. Errors are one line each."""
    from .answer import ExitCode, Problem

    answers = _answers(options.command)
    try:
        if getattr(options, "watch", False):
            _follow(options, answers)
            return int(ExitCode.CLEAR)
        answer = _answer(options, answers)
        from .printer import Style, show

        show(answer, Style.of(options))
    except Problem as problem:
        return _refused(problem)
    return int(answer.code)


def _answers(command: str) -> Answers:
    """Import the answer of a command: the modules of the others take long to load."""
    match command:
        case "why":
            from .why.answer import answer
        case "top" | "devices" | "who" | "claims" | "pools":
            from .devices import answer
        case "free":
            from .free import answer
        case "lint":
            from .lint.answer import answer
        case "doctor":
            from .doctor.answer import answer
        case "taint":
            from .taint import taint_answer as answer
        case "territory":
            from .taint import territory_answer as answer
        case "topology":
            from .topology import answer
        case "fit":
            from .fit import answer
        case "drain":
            from .whatif.drain import answer
        case "defrag":
            from .defrag import answer
        case _:
            from .snapshot import answer
    return answer


def _refused(problem: Problem) -> int:
    print(printable(f"kubectl dra: {problem}"), file=sys.stderr)
    return int(problem.code)


def _follow(options: argparse.Namespace, answers: Answers) -> None:
    """Answer until interrupted. Raises Problem if the first question fails."""
    from .answer import ExitCode, Problem
    from .printer import Style, follow

    if options.source is not None:
        raise Problem("--watch needs a cluster: a snapshot does not change", ExitCode.USAGE)
    follow(lambda: _answer(options, answers), lambda: Style.of(options))


def _answer(options: argparse.Namespace, answers: Answers) -> Answer:
    gc.disable()  # an answer is quick, and the collector would look at all objects of a cluster again and again
    try:
        from .snapshot import read

        return answers(read(options), options)
    finally:
        gc.enable()


def _why_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="*",
        metavar="TYPE/NAME",
        help="a pod, claim, workload or Workload of Kueue, also as TYPE NAME, NAME or NAMESPACE/NAME; with -A alone: "
        "all that wait",
    )
    add_time_limit_argument(parser)
    add_namespace_argument(parser, every=True)
    add_watch_argument(parser)
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def _run_why(options: argparse.Namespace) -> int:
    """A namespace among the words counts like ``-n``: it says where a viewer reads who may not read all."""
    from .answer import ExitCode, Problem, target_of

    if options.target:
        try:
            target = target_of(options.target, WHY_KINDS)
            if target.namespace is not None:
                if options.namespace not in (None, target.namespace):
                    text = f"{' '.join(options.target)!r} names the namespace {target.namespace}"
                    raise Problem(f"{text}, and -n names {options.namespace}: leave one out", ExitCode.USAGE)
                options.namespace = target.namespace
        except Problem as problem:
            return _refused(problem)
        options.of_kueue = target.kind == "workload"
    return answered(options)


def _top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "by",
        nargs="?",
        type=way,
        choices=WAYS,
        default=WAYS[0],
        help="what to group by (%(default)s); also node, ns, ...",
    )
    add_selector_argument(parser, "nodes, for top nodes")
    add_watch_argument(parser)
    add_shared_arguments(parser, is_table=True, decides=False)
    parser.set_defaults(of_devices=True)


def _devices_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", type=plain_name(*NODES), help="only devices of this node")
    parser.add_argument("--driver", type=plain_name("driver", "drivers"), help="only devices of this driver")
    parser.add_argument("--state", choices=STATES, help="only devices in this state")
    add_selector_argument(parser, "nodes")
    add_shared_arguments(parser, is_table=True, decides=False)
    parser.set_defaults(of_devices=True)


def _who_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="DEVICE|NODE", help="node, or device as DRIVER/POOL/DEVICE or the end of that")
    add_shared_arguments(parser, is_table=True, decides=False)
    parser.set_defaults(of_devices=True)


def _claims_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pending", action="store_true", help="only claims without devices")
    add_selector_argument(parser, "claims")
    add_namespace_argument(parser, every=True)
    add_watch_argument(parser)
    add_output_argument(parser, is_table=True)
    add_cluster_arguments(parser)


def _pools_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", type=plain_name(*NODES), help="only pools of this node")
    parser.add_argument("--driver", type=plain_name("driver", "drivers"), help="only pools of this driver")
    add_shared_arguments(parser, is_table=True, decides=False)
    parser.set_defaults(of_devices=True)


def _free_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--class", type=plain_name(*CLASSES), dest="device_class", metavar="CLASS", help="only this device class"
    )
    add_selector_argument(parser, "nodes")
    add_time_limit_argument(parser)
    add_shared_arguments(parser, is_table=True, decides=False)


def _lint_arguments(parser: argparse.ArgumentParser) -> None:
    add_files_argument(parser, "the manifests")
    add_time_limit_argument(parser)
    parser.add_argument(
        "--live", action="store_true", help="check against the cluster; without it and --from: files alone"
    )
    parser.add_argument("--snapshot", dest="source", metavar="FILE", help="the same as --from")
    add_shared_arguments(parser, decides=False, is_looked_in=True)


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fix", action="store_true", help="repair what is safe to repair, after a question for each")
    parser.add_argument("--yes", action="store_true", help="answer each question of --fix with yes")
    parser.add_argument(
        "--operator-account",
        type=account,
        default="dra-system/dra-operator",
        metavar="NAMESPACE/NAME",
        help="the operator's service account, whose rights are checked (%(default)s)",
    )
    add_namespace_argument(parser)
    add_output_argument(parser)
    add_cluster_arguments(parser)


def _taint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "device",
        type=plain_name(*DEVICES),
        metavar="DRIVER[/POOL[/DEVICE]]",
        help="devices of a driver, of one of its pools, or one device",
    )
    parser.add_argument("--dry-run", action="store_true", help="tell what the rule would do instead of printing it")
    parser.add_argument(
        "--effect", choices=("NoExecute", "NoSchedule"), help="what the taint does (NoExecute, which evicts pods)"
    )
    parser.add_argument("--key", default="dra.kopf.dev/maintenance", help="key of the taint (%(default)s)")
    parser.add_argument("--value", default="", help="value of the taint")
    add_time_limit_argument(parser)
    add_shared_arguments(parser)


def _territory_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "device",
        nargs="?",
        type=plain_name(*DEVICES),
        metavar="DRIVER[/POOL[/DEVICE]]",
        help="print a rule that gives these devices to the scheduler; without anything: list whose devices are",
    )
    parser.add_argument(
        "--class",
        type=plain_name(*CLASSES),
        dest="device_class",
        metavar="CLASS",
        help="the devices of a class, as of now",
    )
    parser.add_argument("--nodes", metavar="SELECTOR", help="nodes with these labels: the command that taints them")
    parser.add_argument("--rules", action="store_true", help="with --nodes: rules for their devices instead")
    add_shared_arguments(parser, is_table=True, decides=False)


def _topology_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", type=plain_name(*NODES), metavar="NODE", help="name of the node")
    add_shared_arguments(parser, "svg", decides=False)


def _fit_arguments(parser: argparse.ArgumentParser) -> None:
    add_files_argument(parser, "Pods, or Deployments, Jobs and others with pod templates, and what they refer to")
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--count", type=positive, default=1, metavar="N", help="copies of all of it (1)")
    number.add_argument("--max", action="store_true", help="as many copies as fit")
    parser.add_argument(
        "--drain", type=plain_name(*NODES), metavar="NODE", help="place the pods of this node elsewhere first"
    )
    parser.add_argument(
        "--without",
        type=plain_name(*NODES),
        action="append",
        default=[],
        metavar="NODE",
        help="as if this node were lost; repeatable",
    )
    parser.add_argument(
        "--add-nodes",
        action="append",
        default=[],
        metavar="FILE",
        help="Nodes and ResourceSlices as if they were there; repeatable",
    )
    parser.add_argument(
        "--serve",
        nargs="?",
        const=LOOPBACK,
        metavar="HOST:PORT",
        help=f"answer such questions over HTTP instead, on this address ({LOOPBACK})",
    )
    parser.add_argument(
        "--serve-grpc",
        nargs="?",
        const=GRPC_LOOPBACK,
        metavar="HOST:PORT",
        help=f"the same by gRPC, alone or beside --serve ({GRPC_LOOPBACK})",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="with these two: who asks has to send the token in this file"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="with these two: speak TLS with this certificate and its chain, as PEM"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="the private key of --tls-cert, as PEM")
    add_time_limit_argument(parser)
    add_shared_arguments(parser, is_table=True, is_looked_in=True)


def _run_fit(options: argparse.Namespace) -> int:
    if options.serve is None and options.serve_grpc is None:
        return answered(options)
    from .serve.server import serve

    return serve(options)


def _drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", type=plain_name(*NODES), metavar="NODE", help="name of the node")
    add_time_limit_argument(parser)
    add_shared_arguments(parser, is_table=True)


def _ui_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, default=0, metavar="N", help="port on 127.0.0.1 (default: any free one)")
    parser.add_argument(
        "--allow-origin",
        type=origin,
        action="append",
        default=[],
        metavar="URL",
        help="a page that may ask as well, if it has the token, such as http://localhost:4466; null for pages that are "
        "files, as in Headlamp's app, and with them for sandboxed frames of any site; repeatable",
    )
    add_namespace_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def _run_ui(options: argparse.Namespace) -> int:
    from .ui.server import serve

    return serve(options)


def _defrag_arguments(parser: argparse.ArgumentParser) -> None:
    target = "the waiting pod that is to fit, or gang/NAME, or mix: what pods usually ask for"
    parser.add_argument("--for", dest="wanted", metavar="pod/NAME", help=target)
    add_files_argument(parser, "the pod or gang that is to fit, before it exists, and what it refers to")
    parser.add_argument(
        "--movable-selector",
        metavar="LABELS",
        help='labels of pods that may be moved (those with the annotation dra.kopf.dev/movable: "true")',
    )
    parser.add_argument("--max-moves", type=positive, default=4, metavar="N", help="limit of moves (%(default)s)")
    add_time_limit_argument(parser)
    # The name of --time-limit in earlier versions: scripts have it.
    parser.add_argument("--timeout", dest="time_limit", type=seconds, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--apply", action="store_true", help="make the moves, one after the other")
    parser.add_argument("--yes", action="store_true", help="answer each question of --apply with yes")
    parser.add_argument(
        "--wait", type=seconds, default=300.0, metavar="TIME", help="with --apply: limit for a successor to run (5m)"
    )
    add_shared_arguments(parser, "svg", is_table=True, is_looked_in=True)


def _snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="name.json to write; without it, standard output")
    add_namespace_argument(parser)
    add_cluster_arguments(parser)


def _run_snapshot(options: argparse.Namespace) -> int:
    """The objects go to a file as they are read: nothing is decided about them."""
    from .snapshot import spooling

    with spooling() as options.room:
        return answered(options)


class Command(NamedTuple):
    """``add_arguments`` declares the arguments; ``run`` carries the command out and returns the exit code."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: tuple[str, str, str]
    """As typed after ``kubectl dra``; in the help."""
    run: Callable[[argparse.Namespace], int] = answered


COMMANDS: Final[Mapping[str, Command]] = {
    "why": Command(
        "why a pod or claim is pending, or what it holds",
        _why_arguments,
        ("why pod/train-0 -n ml", "why sts/web", "why -A"),
        _run_why,
    ),
    "top": Command(
        "devices in use, by node, driver, class or namespace",
        _top_arguments,
        ("top", "top classes", "top nodes -l zone=a --sort-by .used"),
    ),
    "devices": Command(
        "each device with its node, state and holder",
        _devices_arguments,
        ("devices --node node-1", "devices --state free -o wide", "devices -o jsonpath='{.items[*].name}'"),
    ),
    "claims": Command(
        "each claim with its state, devices and pods",
        _claims_arguments,
        ("claims -n ml", "claims -A --pending", "claims --sort-by .created -o wide"),
    ),
    "pools": Command(
        "each resource pool, and how much of it is there",
        _pools_arguments,
        ("pools", "pools --node node-1", "pools --driver gpu.example.com -o custom-columns=POOL:.name,FREE:.free"),
    ),
    "who": Command(
        "who has a device, or the devices of a node",
        _who_arguments,
        ("who node-1", "who gpu.example.com/node-1/gpu-0", "who gpu-0 -o name"),
    ),
    "free": Command(
        "devices that are free now, per class and node",
        _free_arguments,
        ("free", "free --class gpu", "free -l zone=a --no-headers"),
    ),
    "lint": Command(
        "what is wrong with manifests, before they are applied",
        _lint_arguments,
        ("lint -f manifests/", "lint -f pod.yaml --live", "lint -f pod.yaml --from snapshot.json -o json"),
    ),
    "doctor": Command(
        "what is broken in claims and slices, and how to repair it",
        _doctor_arguments,
        ("doctor", "doctor --fix", "doctor --from snapshot.json -o json"),
    ),
    "taint": Command(
        "a rule that taints devices, and the pods that it would evict",
        _taint_arguments,
        (
            "taint gpu.example.com/node-1/gpu-0 --dry-run",
            "taint gpu.example.com/node-1 --effect NoSchedule",
            "taint gpu.example.com | kubectl create -f -",
        ),
    ),
    "territory": Command(
        "which scheduler devices belong to, and rules that give them to one",
        _territory_arguments,
        ("territory", "territory gpu.example.com", "territory --nodes zone=a"),
    ),
    "topology": Command(
        "the devices of a node as a tree, or as a picture",
        _topology_arguments,
        ("topology node-1", "topology node-1 -o svg > node-1.svg", "topology node-1 -o json"),
    ),
    "fit": Command(
        "whether pods would fit before they exist, where, and how many",
        _fit_arguments,
        ("fit -f job.yaml", "fit -f job.yaml --max", "fit -f job.yaml --without node-1 --count 4"),
        _run_fit,
    ),
    "drain": Command(
        "what a drain of a node would do to the pods on it",
        _drain_arguments,
        ("drain node-1", "drain node-1 -o wide", "drain node-1 -o json"),
    ),
    "ui": Command(
        "a web page about all devices, served on this machine only",
        _ui_arguments,
        ("ui", "ui --port 8080", "ui --from snapshot.json"),
        _run_ui,
    ),
    "defrag": Command(
        "the fewest moves of pods after which another one fits",
        _defrag_arguments,
        ("defrag --for pod/train-0", "defrag --for gang/train --max-moves 8", "defrag --for pod/train-0 --apply"),
    ),
    "snapshot": Command(
        "save what these commands see, for --from",
        _snapshot_arguments,
        ("snapshot snapshot.json", "snapshot > snapshot.json", "snapshot snapshot.json --context production"),
        _run_snapshot,
    ),
}
