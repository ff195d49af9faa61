"""``dra-operator run``: settings from the command line, and the operator under its supervisor.

Exit codes: 0 after a stop by signal, 1 when the operator failed or the API server cannot be used, 2 for wrong usage or
settings (no kubeconfig, a port in use).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from dra_api.gates import UnknownGate
from dra_kube import Connection, ConnectionSettingsError, KubeError, Timing, connection, unguarded

from dra_operator.cluster import SCHEDULER_NAME
from dra_operator.intake.gates import REMEDY, features_of
from dra_operator.reconcile import UnknownConcern, concerns_of

from .leader import NAMESPACE, CannotElect, Leader, lease_name
from .logs import configure_logs
from .operator import Operator, Options
from .server import CannotServe
from .supervisor import OperatorFailed, Supervisor


def add_arguments(run: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    run.add_argument("--kubeconfig", help="file that says where the API server is (default: $KUBECONFIG, in-cluster)")
    run.add_argument(
        "--scheduler-name", default=SCHEDULER_NAME, help="place the pods that name this scheduler (%(default)s)"
    )
    run.add_argument(
        "--feature-gates", default="", metavar="A=true,B=false", help="changes to those of Kubernetes 1.36"
    )
    run.add_argument(
        "--concerns",
        default="auto",
        metavar="LIST",
        help="what is ours: templates, release, placement; auto: without the first two where kube-controller-manager "
        "works (%(default)s)",
    )
    run.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="stand by while another operator for the same scheduler name leads (default: on)",
    )
    run.add_argument("--leader-elect-namespace", default=NAMESPACE, help="namespace of the Lease (%(default)s)")
    run.add_argument(
        "--leader-elect-lease-duration",
        type=_timing,
        default="10",
        metavar="SECONDS",
        help="time after which a dead leader is replaced (%(default)s)",
    )
    run.add_argument("--metrics-host", default="127.0.0.1", help="address for /metrics, /livez, /readyz")
    run.add_argument("--metrics-port", type=int, help="port for these; 0 takes any free one (default: none)")
    run.add_argument("--check-invariants", action="store_true", help="verify the view after every step, and log")
    run.add_argument("-v", "--verbose", action="count", default=0, help="more log lines; twice for everything")


def run(options: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code."""
    configure_logs(options.verbose)
    if options.kubeconfig:
        os.environ["KUBECONFIG"] = options.kubeconfig  # Kopf logs in again on its own when the server says 401
    try:
        features = features_of(options.feature_gates)
    except UnknownGate as error:
        return _fail(f"--feature-gates: {error}; {REMEDY}", 2)
    try:
        concerns = concerns_of(options.concerns)
    except UnknownConcern as error:
        return _fail(f"--concerns: {error}; name some of these, separated by commas, or auto", 2)
    checks = options.check_invariants
    settings = Options(options.scheduler_name, features, check_invariants=checks, concerns=concerns)
    try:
        asyncio.run(_supervise(options, settings, connection()))
    except CannotElect as error:
        return _fail(str(error), 1)
    except (ConnectionSettingsError, CannotServe) as error:
        return _fail(str(error), 2)
    except KubeError as error:
        return _fail(f"the API server cannot be used: {error}; is it running, and is the kubeconfig the right one?", 1)
    except OperatorFailed as error:
        return _fail(str(error), 1)
    return 0


async def _supervise(options: argparse.Namespace, settings: Options, to: Connection) -> None:
    leader = None
    if options.leader_elect:
        name, timing = lease_name(options.scheduler_name), options.leader_elect_lease_duration
        leader = Leader(to, name, options.leader_elect_namespace, timing)
    operator = Operator(settings, guard=leader.allowance if leader is not None else unguarded)
    await Supervisor(operator, to, options.metrics_host, options.metrics_port, leader).run()


def _timing(text: str) -> Timing:
    seconds = float(text)
    if not 2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 2 and 3600 seconds")
    return Timing.of(seconds)


def _fail(text: str, code: int) -> int:
    print(f"dra-operator: {text}", file=sys.stderr)
    return code
