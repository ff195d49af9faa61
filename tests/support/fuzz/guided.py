"""Fuzzing by coverage: libFuzzer, by way of atheris, keeps inputs that reach new lines, and changes those.

Both kinds of changes are used: libFuzzer's own of bytes, and ours of trees. Only what is imported here is instrumented,
so nothing may have imported it before.
"""

from __future__ import annotations

import sys
import tempfile
from typing import NoReturn

from fuzz.mutation import CORPUS, inputs_of

_CODE = [
    "dra_api",
    "dra_cdi",
    "dra_cel",
    "dra_devcluster",
    "dra_kube",
    "dra_kubeletplugin",
    "dra_ledger",
    "dra_operator",
]


def guide(name: str, seconds: int, seed: int) -> NoReturn:
    """Run until the time is over or the first finding, which libFuzzer keeps in the current folder; it then ends the
    process, with an exit code other than 0 for a finding."""
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # not of our dependencies
    except ImportError:
        sys.exit("--guided needs atheris: pip install atheris")
    with atheris.instrument_imports(include=_CODE):
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
    raise AssertionError("libFuzzer has ended the process")
