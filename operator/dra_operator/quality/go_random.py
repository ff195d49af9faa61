"""The generator of Go's ``math/rand``, because the order of a published run follows from its seed.

It is an additive lagged Fibonacci generator: y[k] = y[k-607] + y[k-273] modulo 2**64. A seed is mixed with a table of
607 numbers, which is the generator's own state after 7.8e12 steps from seed 1. The table is computed here rather than
listed: the state after N steps is x**N modulo x**607 - x**334 - 1, in the coefficients of that polynomial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, TypeVar

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
