"""What random cases have in common: a game plays the case of a seed (``campaign`` plays those of many).

Histories of a cluster and of a node's plugin are played on a ``clock``, from scripts, in a weather that befalls their
requests. A bad one is shrunk to the few steps that matter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import copy_context
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple, Protocol, Self, TypeVar, TypeVarTuple

from dra_kube import ApiError, Conflict, Forbidden, KubeError, ServerError, TooManyRequests, Unreachable


class Step(NamedTuple):
    """``what`` happens at a time, to ``subject``; what ``number`` means, depends on that."""

    at: float
    what: str
    subject: str = ""
    number: float = 0

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.what} {self.subject} {self.number:g}"


def some_times(duration: float, dice: Random, most: int, chance: float) -> Iterator[float]:
    """Yield the times of something that happens up to ``most`` times."""
    for _ in range(most):
        if dice.random() < chance:
            yield dice.uniform(0, duration)


class Steps(Protocol):
    """A script: a named tuple whose text says what is there at the beginning."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What happens, in order."""

    def _replace(self, *, steps: tuple[Step, ...]) -> Self: ...


class Outcome(NamedTuple):
    """``findings`` is empty if all went well; ``strikes`` are the faults of single requests and events.

    ``kinds`` are counted over all seeds, to show that there are cases of each.
    """

    findings: tuple[str, ...]
    strikes: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class Game(NamedTuple):
    """``play`` is given a seed.

    With ``script_of`` it takes another script as well, the strikes that are left in the same weather, and ``traced``.
    """

    play: Callable[..., Outcome]
    script_of: Callable[[int], Any] | None = None


# --- What befalls requests and events: decided by the seed, what it is, and how often it was there before ---

_ALL = 1 << 32
Chances = tuple[tuple[str, float], ...]
"""Names of faults, each with how likely it is."""


class Fate(NamedTuple):
    """``before`` and ``after`` are the seconds to the server and back; ``strike`` is empty for the normal case."""

    before: float
    after: float
    strike: str = ""


class Weather:
    """One history's. ``strikes`` has the names of all that has struck; ``slow`` is the share of what takes seconds."""

    def __init__(self, seed: int, *, only: Collection[str] | None = None) -> None:
        self._seed, self._only = seed, only
        self._met: Counter[str] = Counter()
        self.strikes: list[str] = []
        self.is_over = False
        self.slow = 0.0

    def chance(self, *what: object) -> float:
        """A number from 0 to 1 that belongs to ``what``."""
        return self._mixed(" ".join(map(str, what))) / _ALL

    def fate(self, name: str, chances: Chances) -> Fate:
        self._met[name] += 1
        name = f"{name} #{self._met[name]}"
        first = self._mixed(name)
        before, after = self._seconds(first), self._seconds(self._mixed(name, 2))
        return Fate(before, after, "" if self.is_over else self._strike(name, chances))

    def _mixed(self, name: str, salt: int = 0) -> int:
        # Not ``hash``, which is another one in each process.
        text = f"{self._seed} {salt} {name}"
        return int.from_bytes(blake2b(text.encode(), digest_size=4).digest())

    def _seconds(self, dice: int) -> float:
        """Usually some milliseconds, sometimes some seconds; the two halves of a number decide."""
        share = (dice & 0xFFFF) / 0x10000
        is_slow = (dice >> 16) / 0x10000 < self.slow and not self.is_over
        return 0.001 + share * (3 if is_slow else 0.02)

    def _strike(self, name: str, chances: Chances) -> str:
        dice = self._mixed(name, 1) / _ALL
        for kind, odds in chances:
            if dice < odds:
                strike = f"{kind}: {name}"
                if self._only is not None and strike not in self._only:
                    return ""
                self.strikes.append(strike)
                return kind
            dice -= odds
        return ""


# --- The way of a request to a fake API server and back, in all weathers ---

TIMEOUT = 2.0
"""Seconds after which a client gives up."""
LATE = 9.0
"""Seconds after which a write has no effect any more: the server drops it before the lease of its sender is over."""
REFUSALS: tuple[Callable[[], ApiError], ...] = (
    lambda: Conflict(409, "Conflict", "the object has been modified"),
    lambda: ServerError(500, "InternalError", "etcd is on fire"),
    lambda: ServerError(503, "ServiceUnavailable", "starting"),
    lambda: TooManyRequests(429, "TooManyRequests", "busy", retry_after=1.0),
    lambda: Forbidden(403, "Forbidden", "not allowed"),
)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Network:
    """A part of a server. A request that was sent reaches it, also if its sender is killed.

    While it ``is_away`` all fail. The strikes of a fate are ``lost``, ``refused``, ``late`` and ``unanswered``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.busy = 0
        """Requests that have not reached the server yet, or whose answer is on its way."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of no process

    async def ask(
        self,
        fate: Fate,
        effect: Callable[[], T],
        arrived: Callable[[T | Exception], None],
        answered: Callable[[], None] = lambda: None,
    ) -> T:
        """Return the answer of ``effect``, or raise its error. ``arrived`` is told what came of it at the server.

        ``answered`` is called when the client's task had its turn with the answer.
        """
        answer: asyncio.Future[T] = self._loop.create_future()
        self.busy += 1
        before = fate.before
        if fate.strike == "late":
            self._later(TIMEOUT, _settle, answer, Unreachable("timed out"))
            before = TIMEOUT + fate.before * (LATE - TIMEOUT) / 4

        def arrive() -> None:
            outcome = self._outcome(fate, effect)
            arrived(outcome)
            self._later(fate.after, bring, Unreachable("connection reset") if fate.strike == "unanswered" else outcome)

        def bring(outcome: T | Exception) -> None:
            self.busy -= 1
            if _settle(answer, outcome):
                self._loop.call_soon(self._loop.call_soon, answered)  # the client's task runs in between

        self._later(before, arrive)
        return await answer

    def _outcome(self, fate: Fate, effect: Callable[[], T]) -> T | Exception:
        if fate.strike == "lost" or self.is_away:
            return Unreachable("connection refused")
        if fate.strike == "refused":
            return REFUSALS[int(fate.before * 1e6) % len(REFUSALS)]()
        try:
            return effect()
        except KubeError as error:
            return error

    def _later(self, seconds: float, what: Callable[[*Ts], object], *args: *Ts) -> None:
        """Whatever becomes of the sender's process meanwhile."""
        self._loop.call_later(seconds, what, *args, context=self._context)


def _settle(answer: asyncio.Future[T], outcome: T | Exception) -> bool:
    """Give the client an answer, unless it has one; True if it is no error."""
    if answer.done():
        return False
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
        return False
    answer.set_result(outcome)
    return True


# --- The few steps and strikes of a history without which nothing goes wrong ---

Part = Step | str
"""A step, or a strike of the weather."""


def shrunk(game: Game, seed: int) -> tuple[Any, tuple[str, ...]]:
    """A script and the strikes of its weather, none of which can be left out alone; for a seed that goes wrong."""
    assert game.script_of is not None
    script = game.script_of(seed)

    def goes_wrong(parts: Sequence[Part]) -> bool:
        steps, strikes = _split(parts)
        return bool(game.play(seed, script._replace(steps=steps), strikes).findings)

    parts: Sequence[Part] = [*script.steps, *game.play(seed).strikes]
    before = len(parts) + 1
    while len(parts) < before:
        before = len(parts)
        parts = _fewest(parts, goes_wrong)
    steps, strikes = _split(parts)
    return script._replace(steps=steps), strikes


def _split(parts: Sequence[Part]) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    steps = tuple(part for part in parts if isinstance(part, Step))
    return steps, tuple(part for part in parts if not isinstance(part, Step))


def _fewest(parts: Sequence[Part], is_enough: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """Leave out halves, quarters, ... down to single ones, as long as the rest is enough (delta debugging)."""
    size = len(parts)
    while size:
        start = 0
        while start < len(parts):
            fewer = [*parts[:start], *parts[start + size :]]
            if is_enough(fewer):
                parts = fewer
            else:
                start += size
        size //= 2
    return parts
