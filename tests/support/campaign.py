"""Plays the random cases of many seeds.

    PYTHONPATH=tests/support python -m campaign histories --seeds 0:10000 --workers 2

A campaign makes a case of each seed, and says what is wrong with it. One seed (``--seeds 4711``) is played alone. What
goes wrong in a history is told with the few steps that matter.

Nothing depends on the machine or the process: a seed is the same case everywhere.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import timedelta
from importlib import import_module
from itertools import islice
from typing import Final, NamedTuple

from history_kit.game import Game, Outcome, shrunk

CAMPAIGNS: Final = {
    "allocator": ("allocator_problems:CAMPAIGN", "allocations, beside an exhaustive search"),
    "defrag": ("defrag_campaign:CAMPAIGN", "moves of defrag, beside an exhaustive search"),
    "defrag-gangs": ("defrag_campaign:OF_GANGS", "the same where gangs run, and one waits"),
    "fit": ("fit_replays:CAMPAIGN", "answers of fit --serve, beside pods placed one after the other"),
    "gangs": ("gang_campaign:CAMPAIGN", "joint plans of gangs, beside an exhaustive search"),
    "histories": ("histories.history:GAME", "histories of a cluster"),
    "histories-gangs": ("histories.history:GANGS", "histories of a cluster with a gang whose devices are attached"),
    "histories-pressed": ("histories.history:PRESSED", "histories of a cluster with an urgent pod"),
    "ledger": ("ledger_worlds:CAMPAIGN", "the ledger of devices, beside the operator's view"),
    "plugin-histories": ("plugin_histories.history:GAME", "histories of one node's plugin"),
    "why": ("told:CAMPAIGN", "fixes that why prints, made and tried"),
}
CHUNK = 20  # seeds handed to a worker at once
NEWS = 10.0  # seconds between two lines about the progress
MOST = 5  # histories that are shrunk and told in full


class _Played(NamedTuple):
    """Some seeds: those that went wrong, and how often there was what."""

    number: int
    wrong: list[tuple[int, Outcome]]
    kinds: Counter[str]


def main() -> int:
    """Return 1 if anything went wrong."""
    options = _options()
    module, _, name = CAMPAIGNS[options.campaign][0].partition(":")
    game: Game = getattr(import_module(module), name)
    began = time.monotonic()
    played, wrong, told_at, kinds = 0, 0, -NEWS, Counter[str]()
    for some in _outcomes(game, options.seeds, options.workers, began + options.seconds):
        played += some.number
        kinds += some.kinds
        for seed, outcome in some.wrong:
            wrong += 1
            print(_story(game, seed, outcome, in_full=wrong <= MOST), flush=True)
        if time.monotonic() - told_at >= NEWS:
            told_at = time.monotonic()
            print(_progress(options, played, wrong, told_at - began), file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    counts = "".join(f"; {number} {kind}" for kind, number in sorted(kinds.items()))
    print(f"{played} seeds in {seconds:.1f} s, {played / seconds:.0f} a second; {wrong} went wrong{counts}")
    return 1 if wrong else 0


def _progress(options: argparse.Namespace, played: int, wrong: int, seconds: float) -> str:
    left = min((len(options.seeds) - played) * seconds / played, options.seconds - seconds)
    return (
        f"{played} of {len(options.seeds)} seeds, {played / seconds:.0f} a second, {wrong} went wrong; "
        f"{timedelta(seconds=round(max(0.0, left)))} left"
    )


def _options() -> argparse.Namespace:
    every = "\n".join(f"  {name:20}{about}" for name, (_, about) in CAMPAIGNS.items())
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m campaign", description=__doc__, epilog=f"campaigns:\n{every}", formatter_class=raw
    )
    seeds = "one seed, FIRST:END without the end, or FIRST:END:STEP"
    parser.add_argument("campaign", choices=CAMPAIGNS, metavar="NAME")
    parser.add_argument("--seeds", type=_range, default=range(1000), help=seeds)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that play")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more seeds after this time")
    return parser.parse_args()


def _range(text: str) -> range:
    first, *more = map(int, text.split(":"))
    return range(first, *(more or [first + 1]))


def _outcomes(game: Game, seeds: range, workers: int, deadline: float) -> Iterator[_Played]:
    """Play chunk by chunk. After Ctrl-C none is begun any more."""
    chunks = (seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK))
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    with ProcessPoolExecutor(workers, initializer=_prepare_worker) as pool:
        running: set[Future[_Played]] = set()
        while True:
            if time.monotonic() < deadline and not stopped:
                running |= {pool.submit(_play, game, chunk) for chunk in islice(chunks, workers + 1 - len(running))}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends when all have played what they have begun
    gc.disable()  # most of what a case makes is alive until its end
    gc.freeze()  # what was imported stays: a collection need not look at it


def _play(game: Game, seeds: Sequence[int]) -> _Played:
    outcomes = [(seed, game.play(seed)) for seed in seeds]
    gc.collect()
    kinds = Counter(kind for _, outcome in outcomes for kind in outcome.kinds)
    return _Played(len(seeds), [(seed, outcome) for seed, outcome in outcomes if outcome.findings], kinds)


def _story(game: Game, seed: int, outcome: Outcome, *, in_full: bool) -> str:
    if game.script_of is None or not in_full:
        return "\n".join(f"seed {seed}: {finding}" for finding in outcome.findings[: None if in_full else 1])
    script, strikes = shrunk(game, seed)
    short = game.play(seed, script, frozenset(strikes), traced=True)
    lines = [f"seed {seed} goes wrong:", *outcome.findings, "", f"So does this: {script}"]
    lines += [*map(str, script.steps), *(f"{'':11}{strike}" for strike in strikes), "which ends with:", *short.findings]
    return "\n".join([*lines, "", "What happened:", *short.trace, ""])


if __name__ == "__main__":
    sys.exit(main())
