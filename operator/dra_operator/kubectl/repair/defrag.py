"""``kubectl dra defrag [--apply]``."""

from __future__ import annotations

import argparse
import asyncio
import sys

from dra_api.console import printable
from dra_kube import Api, KubeError

from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.reading.defrag import answer_of, found_for
from dra_operator.kubectl.reading.from_server import NO_LIMIT_SECONDS, where
from dra_operator.kubectl.whatif.defragmentation import Defragmentation
from dra_operator.kubectl.whatif.moves import Move
from dra_operator.wording import counted

from .move import Surprise, moved


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The moves, and with ``--apply`` what became of them. Raises Problem."""
    if options.apply and options.source is not None:
        raise Problem("--apply needs a cluster: leave out --from", ExitCode.USAGE)
    found = found_for(seen, options)
    if not options.apply or not found.moves:
        return answer_of(seen, options, found)
    if not found.is_by_scheduler:
        aside = next(move for move in found.moves if move.chosen != move.target)
        why = f"the scheduler sends the successor of {aside.pod} to {aside.chosen or 'no node'}, not to {aside.target}"
        raise Problem(f"not applied: {why}; look at the plan without --apply", ExitCode.IN_THE_WAY)
    try:
        made, stopped = asyncio.run(_applied(found, options))
    except KubeError as error:
        raise Problem(f"stopped: {error}; run it again to plan anew") from error
    done = f"{made} of {counted(len(found.moves), 'move')} made"
    if stopped:
        raise Problem(f"{done}; stopped: {stopped}; run it again to plan anew", ExitCode.IN_THE_WAY)
    return Answer(lines=[f"{done}: {found.pod} fits on {found.node}"], value=found)


async def _applied(found: Defragmentation, options: argparse.Namespace) -> tuple[int, str]:
    """How many moves were made, and why no more; the first surprise ends it."""
    async with Api(where(options), timeout=options.request_timeout or NO_LIMIT_SECONDS) as api:
        for number, move in enumerate(found.moves):
            if not (options.yes or _is_wanted(move)):
                return number, "the move was not confirmed"
            try:
                successor = await moved(api, move, options.wait)
            except Surprise as surprise:
                return number, str(surprise)
            print(printable(f"{move.pod}: {successor} runs on {move.target}"), file=sys.stderr)
    return len(found.moves), ""


def _is_wanted(move: Move) -> bool:
    """Only a y means yes; without an answer nothing is moved."""
    what = f"cordon {move.source} for the time of this move, and evict {move.pod}"
    question = f"{what}, for its successor to run on {move.target}? [y/N] "
    print(printable(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
