"""Fuzzing by coverage: libFuzzer, by way of atheris, keeps inputs that reach new lines, and changes those.

Both kinds of changes are used: libFuzzer's own of bytes, and ours of trees.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .corpus import CORPUS, inputs_of


def guide(name: str, seconds: int, seed: int) -> int:
    """Run until the time is over or the first finding, which libFuzzer keeps in the current folder."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # not of our dependencies

    with atheris.instrument_imports(include=["dra_api", "dra_cdi", "dra_cel", "dra_kube", "dra_kubeletplugin"]):
        from .mutation import Mutator
        from .targets import TARGETS
    mutator = Mutator([data for _, data in inputs_of(name)], seed)

    def play(data: bytes) -> None:
        finding = TARGETS[name].finding(data)
        if finding is not None:
            raise RuntimeError(finding)

    def change(data: bytes, longest: int, number: int) -> bytes:
        return (mutator.changed(data) if number % 2 else bytes(atheris.Mutate(data, longest)))[:longest]

    with tempfile.TemporaryDirectory() as found:
        limits = [f"-max_total_time={seconds}", f"-seed={seed + 1}", "-max_len=65536", "-rss_limit_mb=4096"]
        words = [sys.argv[0], *limits, f"-artifact_prefix=fuzz-{name}-", found, str(CORPUS / name)]
        atheris.Setup(words, play, custom_mutator=change)
        atheris.Fuzz()
    return 1 if list(Path().glob(f"fuzz-{name}-crash-*")) else 0
