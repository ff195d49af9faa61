"""Which tests may find a fault in a file, those first that are most likely to.

Tests mirror the packages, and what they check has a name: files come first that name the function or class of the
fault, its module, or words of the lines that it changes, and rare words count more than common ones. Then follow the
rest of the room's tests, those of the rooms above it, and files of any other room that have a word nearly alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from small_faults import Fault

PACKAGES: Final = ("proto", "kube", "cel", "ledger", "operator", "simulator", "kubeletplugin", "devcluster")
GENERATED: Final = "proto/dra_proto"
OPERATOR: Final = "operator/dra_operator"
ROOMS: Final[tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("proto/dra_api/validation", ("api",), ("devcluster", "kubeletplugin")),
    ("proto/dra_api", ("api",), ("allocator", "controllers", "scheduling", "devcluster")),
    ("proto/dra_cdi", ("cdi",), ("kubeletplugin", "drivertest", "devcluster")),
    ("kube", ("kube",), ("operator", "controllers", "devcluster")),
    ("cel", ("cel",), ("allocator", "api", "kubectl")),
    (f"{OPERATOR}/allocator", ("allocator",), ("scheduling", "conformance", "cache", "controllers", "kubectl")),
    (f"{OPERATOR}/scheduling", ("scheduling",), ("controllers", "cache", "operator", "kubectl", "quality")),
    (f"{OPERATOR}/cache", ("cache",), ("controllers", "operator", "eviction", "reliability")),
    (f"{OPERATOR}/controllers", ("controllers",), ("operator", "reliability", "cache", "e2e")),
    (f"{OPERATOR}/eviction.py", ("eviction",), ("controllers", "cache", "kubectl")),
    (f"{OPERATOR}/kubectl", ("kubectl",), ("operator", "manifests", "docs")),
    (f"{OPERATOR}/commands", ("operator", "quality"), ("kubectl", "simulator", "docs")),
    (f"{OPERATOR}/quality", ("quality",), ("operator",)),
    (f"{OPERATOR}/kube", ("controllers",), ("kube", "operator", "reliability", "e2e")),
    (f"{OPERATOR}/admission", ("admission",), ("operator", "controllers")),
    ("operator", ("operator",), ("controllers", "kubectl", "reliability", "manifests")),
    ("ledger", ("ledger",), ("kubectl", "allocator", "cache", "devcluster")),
    ("simulator", ("simulator",), ("quality", "kubectl", "docs")),
    ("kubeletplugin", ("kubeletplugin",), ("drivertest", "manifests", "e2e")),
    ("devcluster/dra_driver_test", ("drivertest",), ()),
    ("devcluster", ("devcluster",), ("e2e", "drivertest", "kubectl")),
    ("proto", ("proto",), ("api",)),
)
"""The beginning of a path, the tests of that room, and those of rooms that use it; the first row that fits counts."""
WORD: Final = re.compile(r"[A-Za-z_]\w{2,}")
RARE_SHARE: Final = 0.1
"""Of all files of tests: a word in more of them says nothing."""
TELLING_SCORE: Final = 0.3
"""Of files of any room, such as that of a word that only three files have."""
FIRST: Final = 5
"""Files of tests that are tried before all others of their room."""


class Selection:
    """The tests of a checkout."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, fault: Fault) -> list[list[str]]:
        """Files of tests in groups: the next one is for faults that the one before did not find."""
        own, others = next((own, others) for start, own, others in ROOMS if fault.path.is_relative_to(start))
        near, scores = self._files(own), self._scores(fault)
        far = [*self._files(others), *(it for it, score in scores.items() if score >= TELLING_SCORE)]
        far = [it for it in dict.fromkeys(far) if it not in near]
        ranked = sorted((*near, *far), key=lambda it: (-scores[it] - (it in near) / 10, it))
        first = [it for it in ranked[:FIRST] if scores[it] or it in near]
        rest = [it for it in ranked if it not in first]
        groups = [first, [it for it in rest if it in near], [it for it in rest if it in far and scores[it]]]
        return [group for group in groups if group]

    def _scores(self, fault: Fault) -> Counter[str]:
        """How much the files have to do with the fault, by the names that they use."""
        stem = fault.path.stem
        words = {*fault.names, stem, "".join(part.title() for part in stem.split("_"))}
        words |= set(WORD.findall("\n".join(line[1:] for line in fault.diff.splitlines())))
        scores: Counter[str] = Counter()
        for word in {it.strip("_") for it in words} - {"", "init", "self"}:
            having = [file for file, its in self._words.items() if word in its]
            if len(having) <= len(self._words) * RARE_SHARE:
                for file in having:
                    scores[file] += 1 / len(having)  # type: ignore[assignment]
        return scores

    def _files(self, rooms: Sequence[str]) -> list[str]:
        return [file for room in rooms for file in self._words if file.startswith(f"tests/{room}/")]

    @cached_property
    def _words(self) -> dict[str, frozenset[str]]:
        files = sorted((self._root / "tests").rglob("test_*.py"))
        return {str(file.relative_to(self._root)): frozenset(WORD.findall(file.read_text())) for file in files}
