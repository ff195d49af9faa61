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
    room = LONGEST_BASE - 2  # for the two hyphens
    tail = _cut(entry, max(1, len(entry) * room // len(base)))
    head = _cut(pod, min(max(1, len(pod) * room // len(base)), room - len(tail)))
    return f"{head}-{tail}-"


def _cut(name: str, length: int) -> str:
    """The first characters, without those at the end that must not stand before a hyphen."""
    return name[:length].rstrip(".-")
