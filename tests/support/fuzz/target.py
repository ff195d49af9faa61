"""A decoder under test, and the judgement on one input."""

from __future__ import annotations

import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SECONDS = 10.0
"""Processor time for one input: what is linear takes milliseconds, and a busy machine does not count."""
MEMORY = 1 << 30
"""Address space that one input may add."""


class Hangs(BaseException):
    """The time for one input is over. No ``except Exception`` of the code under test stops it."""


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` decodes an input; ``refusals`` are the errors that it may raise. ``rounds`` is its share of the suite."""

    run: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    about: str
    rounds: int = 100

    def finding(self, data: bytes) -> str | None:
        """What is wrong with the treatment of an input; None if it is accepted or refused as documented."""
        try:
            with _limits():
                self.run(data)
        except self.refusals:
            return None
        except Hangs:
            return f"takes more than {SECONDS:.0f} s of processor time"
        except MemoryError:
            return f"takes more than {MEMORY >> 20} MB"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return "".join(traceback.format_exception(error, limit=-6))
        return None


@contextmanager
def _limits() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (_used() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _stop(_: int, __: FrameType | None) -> None:
    raise Hangs


def _used() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
