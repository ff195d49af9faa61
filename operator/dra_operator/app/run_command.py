"""``dra-operator run``: the operator with its settings, under its supervisor.

Exit codes: 0 after a stop by signal, 1 when the operator failed or the API server cannot be used, 2 for wrong usage or
settings (no kubeconfig, a port in use).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from dra_api.codec import encode
from dra_api.leases import MIX, SETTINGS, SHARED, PublishedSettings
from dra_api.releases.gates import GateError
from dra_api.releases.release import chosen
from dra_kube import (
    Connection,
    ConnectionSettingsError,
    Forbidden,
    KubeError,
    Timing,
    Unauthorized,
    Unreachable,
    connection,
    for_people,
    unguarded,
)
from dra_kube.spans import start_traces
from prometheus_client import CollectorRegistry, disable_created_metrics

from dra_operator.allocator import Left
from dra_operator.controllers import (
    WORKERS,
    BackoffSettings,
    PreemptionSettings,
    TimeSettings,
    TimeSlices,
    controllers_of,
)
from dra_operator.controllers.scheduling.mix import Asked, MixMemory, read_mix
from dra_operator.controllers.scheduling.other_schedulers import DriverMemory
from dra_operator.gates import parse_gates
from dra_operator.kube import RIGHTS

from .leader import CannotElect, Leader, lease_name
from .operator import Operator, Options
from .probes.server import CannotServe
from .settings.settings import OperatorSettings, RetrySettings
from .supervisor import OperatorFailed, Supervisor
from .telemetry.logs import configure_logs
from .telemetry.metrics import LeaderGauge
from .telemetry.request_metrics import Requests

logger = logging.getLogger(__name__)


def main(settings: OperatorSettings, warnings: Iterable[str] = ()) -> int:
    """Run until SIGINT or SIGTERM; return the exit code. ``warnings``: what to log of the settings."""
    configure_logs(settings.verbosity, settings.log_format)
    fail = partial(_fail, settings.log_format)
    for warning in warnings:
        logger.warning(warning)
    start_traces("dra-operator")
    # Or each counter and histogram has another series, with the time at which it was made.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    if settings.kubeconfig:
        os.environ["KUBECONFIG"] = settings.kubeconfig  # Kopf logs in again on its own when the server says 401
    try:
        mix = MixMemory(_mix(settings.placement_mix))
    except (OSError, ValueError) as error:
        return fail(f"--placement-mix: cannot read {settings.placement_mix}: {error}", 2)
    try:
        asyncio.run(_supervise(settings, connection(), mix))
    except CannotElect as error:
        return fail(str(error), 1)
    except GateError as error:
        return fail(f"--feature-gates: {error}, or choose another release with --kubernetes-version", 2)
    except (ConnectionSettingsError, CannotServe) as error:
        return fail(str(error), 2)
    except (Unreachable, Unauthorized) as error:
        return fail(for_people(error), 1)
    except Forbidden as error:
        return fail(f"{error}; {RIGHTS}", 1)
    except KubeError as error:
        return fail(f"the API server cannot be used: {error}", 1)
    except OperatorFailed as error:
        return fail(str(error), 1)
    return 0


def _mix(path: str) -> Sequence[Asked]:
    """Raises OSError, and MixError and UnicodeDecodeError, which are ValueErrors."""
    return read_mix(Path(path).read_text(encoding="utf-8")) if path else ()


async def _supervise(settings: OperatorSettings, to: Connection, mix: MixMemory) -> None:
    leader, registry, drivers = None, CollectorRegistry(), DriverMemory()
    requests = Requests(registry)
    if settings.leader_elect:
        timing = Timing.of(settings.leader_elect_lease_duration)
        name, namespace = lease_name(settings.scheduler_name), settings.leader_elect_namespace
        said = {SETTINGS: encode(published(settings)).decode()}

        def annotations() -> dict[str, str]:
            learned = {MIX: mix.text, SHARED: drivers.text}
            return said | {name: text for name, text in learned.items() if text}

        leader = Leader(to, name, namespace, timing, requests, annotations)
        registry.register(LeaderGauge(leader, settings.scheduler_name))
    allowance = leader.allowance if leader is not None else unguarded

    def is_settled() -> bool:
        return leader is None or leader.is_settled

    operator = Operator(options_of(settings), registry, allowance, requests, mix, is_settled, drivers)
    await Supervisor(operator, to, settings.metrics_host, settings.metrics_port, leader).run()


def published(settings: OperatorSettings) -> PublishedSettings:
    """What the Lease says, so that ``kubectl dra`` decides as this operator without being told."""
    return PublishedSettings(
        feature_gates=settings.feature_gates,
        kubernetes_version=settings.kubernetes_version,
        controllers=settings.controllers,
        scoring_strategy=settings.scoring_strategy,
        placement_strategy=settings.placement_strategy,
        device_order=settings.device_order,
        preemption=settings.preemption,
        preempt_other_schedulers=settings.preempt_other_schedulers,
        preemption_patience=settings.preemption_patience,
        own_devices_only=settings.own_devices_only,
        leave_drivers=settings.leave_drivers,
        leave_nodes=settings.leave_nodes,
    )


def options_of(settings: OperatorSettings) -> Options:
    """The settings in the terms of the operator's rooms."""
    return Options(
        settings.scheduler_name,
        parse_gates(settings.feature_gates),
        chosen(settings.kubernetes_version),
        check_invariants=settings.check_invariants,
        controllers=controllers_of(settings.controllers),
        legacy_claim_names=settings.legacy_claim_names,
        times=_times(settings),
        search_budget=settings.search_budget,
        leaves=Left.of(settings.leave_drivers, settings.leave_nodes, unmarked=settings.own_devices_only),
        scoring_strategy=settings.scoring_strategy,
        device_order=settings.device_order,
        preemption=_preemption(settings),
        placement_strategy=settings.placement_strategy,
        audit_interval=settings.audit_interval,
        request_timeout=settings.request_timeout,
    )


def _preemption(given: OperatorSettings) -> PreemptionSettings | None:
    if not given.preemption:
        return None
    return PreemptionSettings(given.preempt_other_schedulers, given.preemption_patience)


def _times(given: OperatorSettings) -> TimeSettings:
    return TimeSettings(
        workers={
            **WORKERS,
            "templates": given.template_workers,
            "release": given.release_workers,
            "placement": given.placement_workers,
            "eviction": given.eviction_workers,
        },
        retries=_waits(given.retry),
        placement_retries=_waits(given.placement_retry),
        time_slices=TimeSlices(given.planning_turn, given.planning_rest),
        grace=given.conflict_check_grace,
        filter_timeout=given.filter_timeout,
        binding_timeout=given.binding_timeout,
        volume_binding_timeout=given.volume_binding_timeout,
    )


def _waits(given: RetrySettings) -> BackoffSettings:
    return BackoffSettings(given.first, given.longest, given.rate, given.burst)


def _fail(log_format: str, text: str, code: int) -> int:
    """The reason is the last line, for people; among JSON lines it is one of them, so that it is collected as well."""
    if log_format == "json":
        logger.error(text)
    else:
        print(f"dra-operator: {text}", file=sys.stderr)
    return code
