"""The base of generated names: ``<pod>-<entry>-`` (claim-controller.md 5.7).

The API server appends five random characters to at most 58, so that the name has no more than 63. Longer bases are
shortened here, both parts in proportion, so that one can still tell pod and entry.
"""

LONGEST_BASE = 57


def generated_name_base(pod: str, entry: str) -> str:
    """What goes into ``metadata.generateName``; keeps the hyphen before the random part."""
    base = f"{pod}-{entry}-"
    if len(base) <= LONGEST_BASE:
        return base
    room = LONGEST_BASE - 1
    return f"{_cut(pod, room, len(base))}-{_cut(entry, room, len(base))}-"


def _cut(name: str, room: int, length: int) -> str:
    """The name's share of the room, at least one character, and none at the end that must not stand before a hyphen."""
    return name[: max(1, len(name) * room // length)].rstrip(".-")
