"""``kubectl dra doctor``: all checks, in the order of urgency, and ``--fix``.

Repairs are conditional writes: an object that has changed since the read is left alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence

from dra_api.console import printable
from dra_api.core import Node, Pod
from dra_api.meta import PODS, RESOURCE_CLAIMS
from dra_api.resource import ResourceClaim, ResourceSlice
from dra_kube import Api, KubeError, NotFound

from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.doctor.claims import allocation_troubles, claim_troubles
from dra_operator.kubectl.doctor.devices import device_troubles, slice_troubles
from dra_operator.kubectl.doctor.rights import missing_rights, needed_rights, operator_lacks
from dra_operator.kubectl.doctor.schedulers import scheduler_troubles
from dra_operator.kubectl.doctor.trouble import Diagnosis, Repair, advised_once
from dra_operator.kubectl.live import NO_LIMIT_SECONDS, where
from dra_operator.kubectl.observed import Observed, notes_on
from dra_operator.wording import counted


def diagnose(seen: Observed) -> list[Diagnosis]:
    """What is wrong."""
    checks = (scheduler_troubles, allocation_troubles, claim_troubles, device_troubles, slice_troubles)
    return advised_once(one for check in checks for one in check(seen))


async def repaired(api: Api, repair: Repair) -> str:
    """Return why it was not made, or not completely; an empty text if it was."""
    made = 0
    try:
        for name, uid in repair.gone:
            if await _exists(api, repair.namespace, name, uid):
                return f"not repaired: pod {name} exists"
        if repair.deleted is not None:
            uid, version = repair.deleted
            await api.delete(RESOURCE_CLAIMS, repair.name, repair.namespace, uid=uid, resource_version=version)
            made += 1
        for part, operations in repair.patches:
            body = list(operations)
            await api.patch(RESOURCE_CLAIMS, repair.name, body, repair.namespace, kind="json", subresource=part or None)
            made += 1
    except NotFound:
        return "" if made else "nothing to repair any more: the claim is gone"
    except KubeError as error:
        if made:
            return f"repaired in part; run doctor again, the claim may have changed: {error}"
        return f"not repaired, the claim may have changed: {error}"
    return ""


async def _exists(api: Api, namespace: str, name: str, uid: str) -> bool:
    """Whether the pod of this UID is there after all: the list may have been older than the reservation."""
    try:
        pod = await api.get(PODS, name, namespace)
    except NotFound:
        return False
    return bool(pod["metadata"].get("uid") == uid)


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """What is wrong, and with ``--fix`` what became of it. Raises Problem."""
    if options.source is not None and options.fix:
        raise Problem("--fix needs a cluster: leave out --from", ExitCode.USAGE)
    found = diagnose(seen)
    if options.source is not None:
        return _answer(seen, found, frozenset())
    try:
        rights, notes, done = asyncio.run(_live(seen, found, options))
    except KubeError as error:
        raise Problem(str(error)) from error
    return _answer(seen, [*rights, *found], done, notes)


async def _live(
    seen: Observed, found: Sequence[Diagnosis], options: argparse.Namespace
) -> tuple[list[Diagnosis], list[str], frozenset[int]]:
    """Missing rights, notes on them, and the places of what was repaired."""
    async with Api(where(options), timeout=options.request_timeout or NO_LIMIT_SECONDS) as api:
        lacks, notes = await operator_lacks(api, options.operator_account, needed_rights(seen))
        rights = [*await missing_rights(api, fix=options.fix, release=seen.release), *lacks]
        done = set()
        tried: dict[tuple[str, str], tuple[Repair, bool]] = {}  # one that frees several devices is advised for each
        for place, one in enumerate(found) if options.fix else ():
            if one.repair is None:
                continue
            claim = one.repair.namespace, one.repair.name
            repair, is_made = tried.get(claim, (None, False))
            if repair != one.repair:
                is_made = (options.yes or _is_wanted(one, one.repair)) and await _is_made(api, one, one.repair)
                tried[claim] = one.repair, is_made
            if is_made:
                done.add(len(rights) + place)
    return rights, notes, frozenset(done)


async def _is_made(api: Api, one: Diagnosis, repair: Repair) -> bool:
    """Make the repair, and say what became of it."""
    why_not = await repaired(api, repair)
    print(printable(f"{one.trouble.object}: {why_not or 'repaired'}"), file=sys.stderr)
    return not why_not


def _is_wanted(one: Diagnosis, repair: Repair) -> bool:
    """Only a y means yes; without an answer nothing is repaired."""
    print(printable(f"{one.trouble.object} {one.trouble.message}"), file=sys.stderr)
    print(printable(f"  {repair.text}? [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _answer(seen: Observed, found: list[Diagnosis], done: frozenset[int], notes: Sequence[str] = ()) -> Answer:
    left = [one.trouble for place, one in enumerate(found) if place not in done]
    code = ExitCode.IN_THE_WAY if left else ExitCode.CLEAR
    value = {"troubles": left, "repaired": len(done)}
    names = list(dict.fromkeys(trouble.object for trouble in left))
    lines = [*_lines([one for place, one in enumerate(found) if place not in done]), _checked(seen, len(left))]
    return Answer(lines=lines, value=value, names=names, notes=[*notes_on(seen), *notes], code=code)


def _lines(found: Sequence[Diagnosis]) -> Iterator[str]:
    for one in found:
        trouble = one.trouble
        yield f"{trouble.object} {trouble.message}"
        if trouble.remedy:
            yield f"  {trouble.remedy}" + (" (doctor --fix does it)" if one.repair is not None else "")
        if trouble.command:
            yield f"  $ {trouble.command}"


def _checked(seen: Observed, number: int) -> str:
    kinds = ((ResourceClaim, "claim"), (Pod, "pod"), (ResourceSlice, "slice"), (Node, "node"))
    looked = ", ".join(counted(len(seen.every(kind)), noun) for kind, noun in kinds)
    return f"looked at {looked}: {counted(number, 'trouble') if number else 'nothing is wrong'}"
