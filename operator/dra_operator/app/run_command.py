"""``dra-operator run``: settings from the command line, and the operator under its supervisor.

Exit codes: 0 after a stop by signal, 1 when the operator failed or the API server cannot be used, 2 for wrong usage or
settings (no kubeconfig, a port in use).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial

from dra_kube import (
    Connection,
    ConnectionSettingsError,
    Forbidden,
    KubeError,
    Timing,
    Unauthorized,
    Unreachable,
    connection,
    unguarded,
)
from dra_kube.spans import start_traces
from prometheus_client import CollectorRegistry, disable_created_metrics

from dra_operator.intake.gates import features_of
from dra_operator.kube import RIGHTS
from dra_operator.reconcile import Pace, Turns, Waits, concerns_of

from .command_line import CommandLine, strangers
from .leader import CannotElect, Leader, lease_name
from .logs import configure_logs
from .metrics import LeaderGauge
from .operator import Operator, Options
from .request_metrics import Requests
from .server import CannotServe
from .settings import OperatorSettings, RetrySettings
from .supervisor import OperatorFailed, Supervisor

logger = logging.getLogger(__name__)


def main(words: Sequence[str]) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code."""
    settings = CommandLine().settings(words)
    configure_logs(settings.verbosity, settings.log_format)
    fail = partial(_fail, settings.log_format)
    for name in strangers(os.environ):
        logger.warning("environment variable %s is no setting, and has no effect; --help lists all", name)
    start_traces("dra-operator")
    # Or each counter and histogram has another series, with the time at which it was made.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    if settings.kubeconfig:
        os.environ["KUBECONFIG"] = settings.kubeconfig  # Kopf logs in again on its own when the server says 401
    try:
        asyncio.run(_supervise(settings, connection()))
    except CannotElect as error:
        return fail(str(error), 1)
    except (ConnectionSettingsError, CannotServe) as error:
        return fail(str(error), 2)
    except Unreachable as error:
        return fail(f"the API server cannot be used: {error}; is it running, and is the kubeconfig the right one?", 1)
    except Forbidden as error:
        return fail(f"{error}; {RIGHTS}", 1)
    except Unauthorized as error:
        return fail(f"the API server refuses the credentials: {error}; renew them in the kubeconfig", 1)
    except KubeError as error:
        return fail(f"the API server cannot be used: {error}", 1)
    except OperatorFailed as error:
        return fail(str(error), 1)
    return 0


async def _supervise(settings: OperatorSettings, to: Connection) -> None:
    leader, registry = None, CollectorRegistry()
    requests = Requests(registry)
    if settings.leader_elect:
        timing = Timing.of(settings.leader_elect_lease_duration)
        leader = Leader(to, lease_name(settings.scheduler_name), settings.leader_elect_namespace, timing, requests)
        registry.register(LeaderGauge(leader, settings.scheduler_name))
    operator = Operator(options_of(settings), registry, leader.allowance if leader is not None else unguarded, requests)
    await Supervisor(operator, to, settings.metrics_host, settings.metrics_port, leader).run()


def options_of(settings: OperatorSettings) -> Options:
    """The settings in the terms of the operator's rooms."""
    return Options(
        settings.scheduler_name,
        features_of(settings.feature_gates),
        check_invariants=settings.check_invariants,
        concerns=concerns_of(settings.concerns),
        legacy_claim_names=settings.legacy_claim_names,
        pace=_pace(settings),
        search_budget=settings.search_budget,
        scoring_strategy=settings.scoring_strategy,
        audit_interval=settings.audit_interval,
        request_timeout=settings.request_timeout,
    )


def _pace(given: OperatorSettings) -> Pace:
    return Pace(
        workers={
            "pod": given.template_workers,
            "claim": given.release_workers,
            "place": given.placement_workers,
            "evict": given.eviction_workers,
            "rule": 1,
            "pools": 1,
        },
        retries=_waits(given.retry),
        placement_retries=_waits(given.placement_retry),
        turns=Turns(given.planning_turn, given.planning_rest),
        grace=given.contested_grace,
        filter_timeout=given.filter_timeout,
        binding_timeout=given.binding_timeout,
        volume_binding_timeout=given.volume_binding_timeout,
    )


def _waits(given: RetrySettings) -> Waits:
    return Waits(given.first, given.longest, given.rate, given.burst)


def _fail(log_format: str, text: str, code: int) -> int:
    """The reason is the last line, for people; among JSON lines it is one of them, so that it is collected, too."""
    if log_format == "json":
        logger.error(text)
    else:
        print(f"dra-operator: {text}", file=sys.stderr)
    return code
