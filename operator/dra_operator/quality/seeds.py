"""Seeds as people write them: ``42``, ``42-51``, ``1,5,42-51``."""

from __future__ import annotations

from typing import Final

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
