"""What happens in a run: the pods in the order of their arrival, the nodes in the order that decides among equals.

Both follow from the seed alone. The pods of the trace are shuffled; then pods are removed, or drawn again from the
trace, until they ask for ``inflate`` times the GPUs of the cluster; 0 leaves them as they are. The rules, the odd ones
included, are those of the published runs, which have no gangs.

The order of a published run follows from its seed by the generator of Go's ``math/rand``, so ``GoRandom`` repeats it.
It is an additive lagged Fibonacci generator: y[k] = y[k-607] + y[k-273] modulo 2**64. A seed is mixed with a table of
607 numbers, which is the generator's own state after 7.8e12 steps from seed 1. The table is computed here rather than
listed: the state after N steps is x**N modulo x**607 - x**334 - 1, in the coefficients of that polynomial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeVar

from dra_operator.quality.trace import WHOLE_MILLI, Shape, TraceNode, TracePod

MOST_SEEDS: Final = 10_000
LARGEST_SEED: Final = 2**31 - 1


def read_seeds(text: str) -> list[int]:
    """The seeds, each once. Raises ValueError, which says what is expected."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (_is_seed(first) and (not dash or _is_seed(last))):
            raise ValueError(
                f"{part!r} is not a seed; write a number from 0 to {LARGEST_SEED}, or a range such as 42-51"
            )
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ValueError(f"{part!r} is empty; write the smaller number first")
        if len(seeds) + len(numbers) > MOST_SEEDS:
            raise ValueError(f"more than {MOST_SEEDS} seeds; each is a run of some seconds, give fewer")
        seeds.update(dict.fromkeys(numbers))
    return list(seeds)


def _is_seed(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_SEED)) and int(text) <= LARGEST_SEED


STATE_WORDS: Final = 607
LAG_WORDS: Final = 273
STEPS: Final = 7_800_000_000_000
WORD_MASK: Final = (1 << 64) - 1
LEHMER_FACTOR: Final = 48271
LEHMER_MODULUS: Final = (1 << 31) - 1
SEED_OF_ZERO: Final = 89482311
"""What Go takes for seed 0."""
SKIPPED_DRAWS: Final = 20
"""Numbers of the Lehmer generator before the first that counts."""
SLOT_BYTES: Final = 18
"""A coefficient of a product: below 2**138."""
Item = TypeVar("Item")


class GoRandom:
    """The stream of one seed."""

    def __init__(self, seed: int) -> None:
        start = seed % LEHMER_MODULUS or SEED_OF_ZERO
        self._words = [mixed ^ word for mixed, word in zip(_mixed(start, 40), _table(), strict=True)]
        self._tap = 0
        self._feed = STATE_WORDS - LAG_WORDS

    def _uint64(self) -> int:
        self._tap = (self._tap or STATE_WORDS) - 1
        self._feed = (self._feed or STATE_WORDS) - 1
        word = (self._words[self._feed] + self._words[self._tap]) & WORD_MASK
        self._words[self._feed] = word
        return word

    def int63(self) -> int:
        """Go's ``Int63``; ``Int`` and ``Float64`` take as much of the stream."""
        return self._uint64() & (WORD_MASK >> 1)

    def intn(self, below: int) -> int:
        """Go's ``Intn`` for numbers below 2**31."""
        limit = (1 << 31) - 1 - (1 << 31) % below
        while (drawn := self.int63() >> 32) > limit:
            pass
        return drawn % below

    def permutation(self, length: int) -> list[int]:
        """Go's ``Perm``."""
        order = [0] * length
        for number in range(length):
            place = self.intn(number + 1)
            order[number] = order[place]
            order[place] = number
        return order

    def shuffle(self, items: list[Item]) -> None:
        """Go's ``Shuffle``."""
        for last in range(len(items) - 1, 0, -1):
            place = self._below(last + 1)
            items[last], items[place] = items[place], items[last]

    def _below(self, limit: int) -> int:
        """As ``Shuffle`` draws: by multiplication."""
        product = (self.int63() >> 31) * limit
        while product & 0xFFFFFFFF < (1 << 32) % limit:
            product = (self.int63() >> 31) * limit
        return product >> 32


def _mixed(start: int, shift: int) -> Iterator[int]:
    """The words of a seed, each of three numbers: the first moved by ``shift`` bits, the second by half of that."""
    lehmer = start
    for _ in range(SKIPPED_DRAWS):
        lehmer = lehmer * LEHMER_FACTOR % LEHMER_MODULUS
    for _ in range(STATE_WORDS):
        word = 0
        for moved in (shift, shift // 2, 0):
            lehmer = lehmer * LEHMER_FACTOR % LEHMER_MODULUS
            word ^= lehmer << moved
        yield word & WORD_MASK


@cache
def _table() -> Sequence[int]:
    power = _power(STEPS)
    words = list(_mixed(1, 20))
    # words[place] is y[334 - place modulo 607]; in order of time y[-606] comes first
    past = [words[(STATE_WORDS - LAG_WORDS - step) % STATE_WORDS] for step in range(1 - STATE_WORDS, 1)]
    for _ in range(STATE_WORDS):
        past.append((past[-STATE_WORDS] + past[-LAG_WORDS]) & WORD_MASK)
    table = [0] * STATE_WORDS
    for offset in range(STATE_WORDS):
        word = sum(factor * past[offset + number] for number, factor in enumerate(power)) & WORD_MASK
        step = STEPS + 1 - STATE_WORDS + offset
        table[(STATE_WORDS - LAG_WORDS - step) % STATE_WORDS] = word
    return table


def _power(exponent: int) -> list[int]:
    """The coefficients of x**exponent."""
    result = [1]
    for bit in f"{exponent:b}":
        result = _reduced(_square(result))
        if bit == "1":
            result = _reduced([0, *result])
    return result + [0] * (STATE_WORDS - len(result))


def _square(polynomial: Sequence[int]) -> list[int]:
    packed = int.from_bytes(b"".join(it.to_bytes(SLOT_BYTES, "little") for it in polynomial), "little")
    size = SLOT_BYTES * (2 * len(polynomial) - 1)
    found = (packed * packed).to_bytes(size, "little")
    return [int.from_bytes(found[at : at + SLOT_BYTES], "little") for at in range(0, size, SLOT_BYTES)]


def _reduced(polynomial: list[int]) -> list[int]:
    for degree in range(len(polynomial) - 1, STATE_WORDS - 1, -1):
        polynomial[degree - LAG_WORDS] += polynomial[degree]
        polynomial[degree - STATE_WORDS] += polynomial[degree]
    return [it & WORD_MASK for it in polynomial[:STATE_WORDS]]


LOG_DRAWS: Final = 1
"""Numbers that the published runs draw for a log line before they shuffle."""
INFORMER_DRAWS: Final = 10
"""Numbers that their ten informers draw for watch time-outs, after the pods and before the order of the nodes."""
POPULAR_PERCENT: Final = 95
"""Typical are the commonest pods, until they are so many of all."""


class TypicalPod(NamedTuple):
    """A kind of pods of the trace, and its part of the typical ones."""

    shape: Shape
    part: float


class Workload(NamedTuple):
    """One run."""

    pods: Sequence[TracePod]
    """The trace, in the order of names: the mix that is known beforehand."""
    arrivals: Sequence[TracePod]
    nodes: Sequence[TraceNode]
    """In the order in which equals are taken."""
    typical: Sequence[TypicalPod]
    random: GoRandom
    """Where the stream is when the first pod arrives."""
    has_gangs: bool = False
    """Whether a pod of several GPUs is a gang: as many pods of one GPU, all at once or none."""


def workload(
    pods: Sequence[TracePod], nodes: Sequence[TraceNode], seed: int, inflate: float, *, has_gangs: bool = False
) -> Workload:
    """The run of a seed. ``pods`` and ``nodes`` are in the order of their names."""
    random = GoRandom(seed)
    for _ in range(LOG_DRAWS):
        random.int63()
    arrivals = list(pods)
    random.shuffle(arrivals)
    if inflate:
        _inflate(arrivals, pods, inflate * WHOLE_MILLI * sum(node.gpus for node in nodes), random)
    for _ in range(INFORMER_DRAWS):
        random.int63()
    places = random.permutation(len(nodes))
    ordered = [node for _, node in sorted(zip(places, nodes, strict=True))]
    known = [member for pod in pods for member in members(pod)] if has_gangs else pods
    return Workload(known, arrivals, ordered, typical_pods(known), random, has_gangs)


def members(pod: TracePod) -> list[TracePod]:
    """The pods of one GPU that do the work of a pod of several; another pod alone."""
    gpus = pod.shape.gpus
    if gpus < 2:
        return [pod]
    shape = pod.shape._replace(cpu=pod.shape.cpu // gpus, gpus=1)
    return [TracePod(f"{pod.name}-{number}", pod.memory // gpus, shape) for number in range(gpus)]


def _inflate(arrivals: list[TracePod], pods: Sequence[TracePod], goal: float, random: GoRandom) -> None:
    """Pods are either drawn at random and removed, or drawn from the trace and added."""
    requested = sum(pod.shape.total for pod in arrivals)
    if requested > goal:
        while requested > goal:
            requested -= arrivals.pop(random.intn(len(arrivals))).shape.total
    elif requested:
        while requested + (drawn := pods[random.intn(len(pods))]).shape.milli <= goal:
            arrivals.append(drawn)
            requested += drawn.shape.total


def typical_pods(pods: Sequence[TracePod]) -> list[TypicalPod]:
    """The commonest kinds, the commonest first."""
    counts = Counter(pod.shape for pod in pods)
    ranked = sorted(counts.items(), key=lambda it: (it[1], it[0]), reverse=True)
    total = float(len(pods))
    taken: list[tuple[Shape, int]] = []
    covered = 0.0
    for shape, count in ranked:
        if covered >= POPULAR_PERCENT * total / 100.0:
            break
        taken.append((shape, count))
        covered += count
    everything = len(taken) == len(ranked)
    return [
        TypicalPod(shape, count / total if everything else count / total / (covered / total)) for shape, count in taken
    ]
