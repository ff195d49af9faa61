"""Plays the histories of many seeds; prints those that go wrong, each with the few steps that matter.

How far it is, and when it will be over, stands on stderr every ten seconds. Ctrl-C ends it when the histories under way
are over, with what was played.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import timedelta
from itertools import islice

from .game import Game, Outcome, Play
from .shrink import shrunk

CHUNK = 20  # seeds handed to a worker at once
NEWS = 10.0  # seconds between two lines about the progress
MOST = 5  # histories that are shrunk and told in full


def main(game: Game) -> int:
    """The exit code: 1 if a history went wrong."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", game.name, *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    options = _options(game)
    began = time.monotonic()
    played, wrong, told_at = 0, 0, -NEWS
    for chunk, outcomes in _outcomes(game.play, options.seeds, options.workers, began + options.seconds):
        played += len(chunk)
        for seed, outcome in outcomes:
            wrong += 1
            print(_story(game, seed, outcome) if wrong <= MOST else f"seed {seed}: {outcome.findings[0]}", flush=True)
        if time.monotonic() - told_at >= NEWS:
            told_at = time.monotonic()
            print(_progress(options, played, wrong, told_at - began), file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"{played} histories in {seconds:.1f} s, {played / seconds:.0f} a second; {wrong} went wrong")
    return 1 if wrong else 0


def _progress(options: argparse.Namespace, played: int, wrong: int, seconds: float) -> str:
    left = min((len(options.seeds) - played) * seconds / played, options.seconds - seconds)
    return (
        f"{played} of {len(options.seeds)} histories, {played / seconds:.0f} a second, {wrong} went wrong; "
        f"{timedelta(seconds=round(max(0.0, left)))} left"
    )


def _options(game: Game) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {game.name}", description=__doc__)
    seeds = "one seed, FIRST:END without the end, or FIRST:END:STEP"
    parser.add_argument("--seeds", type=_range, default=range(1000), help=seeds)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that play")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more histories after this time")
    return parser.parse_args()


def _range(text: str) -> range:
    first, *more = map(int, text.split(":"))
    return range(first, *(more or [first + 1]))


def _outcomes(
    play: Play, seeds: range, workers: int, deadline: float
) -> Iterator[tuple[Sequence[int], list[tuple[int, Outcome]]]]:
    """Each chunk of seeds that was played, with those that went wrong. After Ctrl-C none is begun any more."""
    chunks = (seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK))
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    with ProcessPoolExecutor(workers, initializer=_prepare_worker) as pool:
        running: dict[Future[list[tuple[int, Outcome]]], range] = {}
        while True:
            if time.monotonic() < deadline and not stopped:
                for chunk in islice(chunks, workers + 1 - len(running)):
                    running[pool.submit(_play, play, chunk)] = chunk
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends when all have played what they have begun
    gc.disable()  # most of what a history makes is alive until its end
    gc.freeze()  # what was imported stays: a collection need not look at it


def _play(play: Play, seeds: Sequence[int]) -> list[tuple[int, Outcome]]:
    outcomes = [(seed, play(seed)) for seed in seeds]
    gc.collect()
    return [(seed, outcome) for seed, outcome in outcomes if outcome.findings]


def _story(game: Game, seed: int, outcome: Outcome) -> str:
    script, strikes = shrunk(game, seed)
    short = game.play(seed, script, frozenset(strikes), traced=True)
    lines = [f"seed {seed} goes wrong:", *outcome.findings, "", f"So does this: {script}"]
    lines += [*map(str, script.steps), *(f"{'':11}{strike}" for strike in strikes), "which ends with:", *short.findings]
    return "\n".join([*lines, "", "What happened:", *short.trace, ""])
