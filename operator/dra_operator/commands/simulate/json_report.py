"""Attempts as one JSON document, for programs; ``docs/simulate.md`` describes the fields, which are stable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dra_api.codec import to_dict

from dra_operator.allocator import Refusal
from dra_operator.scheduling import (
    CycleState,
    Faulty,
    Fits,
    Lacking,
    NodeStatus,
    NoPlace,
    NotTried,
    Obstructed,
    Plan,
    PreFilterResult,
)
from dra_operator.scheduling.state import Obstacle

from .attempts import SimulatedAttempt

JSON = dict[str, Any]
VERSION: Final = 1


def document(attempts: Iterable[SimulatedAttempt], notes: Sequence[str]) -> JSON:
    """The attempts as one document."""
    listed = [_attempt(attempt) for attempt in attempts]
    verdicts = Counter(attempt["verdict"] for attempt in listed)
    return {"version": VERSION, "notes": list(notes), "attempts": listed, "summary": dict(sorted(verdicts.items()))}


def _attempt(attempt: SimulatedAttempt) -> JSON:
    report: JSON = {
        "pod": attempt.pod.key if attempt.pod is not None else None,
        "claims": [claim.key for claim in attempt.claims],
        "verdict": attempt.verdict.value,
        "node": _node(attempt),
        "nodes": [{"node": state.name, **_answer(attempt, answer)} for state, answer in attempt.answers],
    }
    if attempt.alone:
        report["fitsAlone"] = [key for key, fits in attempt.alone.items() if fits]
    if isinstance(attempt.outcome, NoPlace):
        report["message"] = attempt.outcome.message
    if attempt.held_back is not None:
        reason = {"subject": attempt.held_back.subject, "text": attempt.held_back.reason}
        report["message"] = attempt.held_back.text
        report["obstacle"] = {"kind": attempt.held_back.kind.value, **reason}
    return report | _before_nodes(attempt.pre_filter_result)


def _node(attempt: SimulatedAttempt) -> str | None:
    if isinstance(attempt.outcome, Plan):
        return attempt.outcome.node
    return (attempt.pod.spec.node_name or None) if attempt.pod is not None else None


def _before_nodes(found: PreFilterResult | None) -> JSON:
    if found is None or isinstance(found, CycleState):
        return {}
    report: JSON = {"message": found.text}
    return report | ({"obstacle": _obstacle(found.obstacle)} if isinstance(found, NotTried) else {})


def _answer(attempt: SimulatedAttempt, answer: NodeStatus) -> JSON:
    fields: JSON = {"answer": answer.kind}
    if isinstance(answer, Fits):
        results = attempt.allocations(answer.plan)
        return fields | {"allocations": {key: to_dict(result) for key, result in results.items()}}
    if isinstance(answer, Obstructed):
        elsewhere = sorted(claim.key for claim in attempt.claims if claim.metadata.uid in answer.elsewhere)
        return fields | {"obstacle": _obstacle(answer.obstacle), "claimsElsewhere": elsewhere}
    if isinstance(answer, Lacking):
        return fields | {"refusal": _refusal(answer.refusal)}
    return fields | {"message": str(answer.error) if isinstance(answer, Faulty) else answer.text}


def _obstacle(obstacle: Obstacle) -> JSON:
    return {"kind": obstacle.reason.name, "subject": obstacle.subject, "text": obstacle.text}


def _refusal(refusal: Refusal) -> JSON:
    claim = refusal.claim
    return {
        "kind": refusal.rule.value,
        "claim": claim.key,
        "extendedResource": claim.resource or None,
        "deviceClass": claim.device_class or None,
        "request": refusal.request,
        "needs": refusal.needs,
        "devices": refusal.devices,
        "matching": refusal.matching,
        "lost": {lost.rule.value: lost.devices for lost in refusal.lost},
        "pools": list(refusal.pools),
        "held": [str(device) for device in refusal.held],
        "fix": refusal.fix,
        "text": refusal.line(),
    }
