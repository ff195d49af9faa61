"""Names of generated claims: ``<pod>-<entry>-`` and five characters, at most 63 in all (claim-controller.md 5.7).

Long parts are shortened in proportion, so that both can still be recognized. The five characters look like those that
the API server appends to a ``generateName``, but follow from the pod's UID and the entry. So a repeated creation, for
example after a lost answer, meets the existing claim instead of making a second one.
"""

import hashlib
import re

NAME_ATTEMPTS = 5
"""So many names are tried for a claim: objects of other owners may have the first ones."""
LONGEST_BASE_CHARACTERS = 57
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # those of the API server: without vowels, so that no words appear
_LETTERS = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))
"""A letter for each byte."""
_SUFFIX_CHARACTERS = 5


def generated_name(base: str, pod_uid: str, entry: str, attempt: int) -> str:
    """The name for an entry's claim; another one for each attempt, for when a name is taken by something else."""
    digest = hashlib.sha256(f"{pod_uid}/{entry}/{attempt}".encode()).digest()
    return base + digest[:_SUFFIX_CHARACTERS].translate(_LETTERS).decode()


def is_ours(claim: str, pod: str, pod_uid: str, entry: str) -> bool:
    """Whether an operator like this one makes or records a claim of that name for the entry."""
    base = generated_name_base(pod, entry)
    names = (generated_name(base, pod_uid, entry, attempt) for attempt in range(NAME_ATTEMPTS))
    return claim == legacy_name(pod, entry) or claim in names


def without_suffix(text: str, base: str) -> str:
    """The text with ``base*`` for each name made from the base, so that two attempts that fail alike say the same."""
    return re.sub(rf"{re.escape(base)}[a-z0-9]{{{_SUFFIX_CHARACTERS}}}\b", f"{base}*", text)


def legacy_name(pod: str, entry: str) -> str:
    """The name that Kubernetes up to 1.27 gave to the claim of an entry (claim-controller.md 5.8)."""
    return f"{pod}-{entry}"


def generated_name_base(pod: str, entry: str) -> str:
    """What goes into ``metadata.generateName``; keeps the hyphen before the random part."""
    base = f"{pod}-{entry}-"
    if len(base) <= LONGEST_BASE_CHARACTERS:
        return base
    room = LONGEST_BASE_CHARACTERS - 2  # for the two hyphens
    tail = _cut(entry, max(1, len(entry) * room // len(base)))
    head = _cut(pod, min(max(1, len(pod) * room // len(base)), room - len(tail)))
    return f"{head}-{tail}-"


def _cut(name: str, length: int) -> str:
    """The first characters, without those at the end that must not stand before a hyphen."""
    return name[:length].rstrip(".-")
