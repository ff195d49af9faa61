"""Fuzzes one target for a while, or plays files again; prints what goes wrong, and keeps the input.

With ``--guided`` it fuzzes by coverage: libFuzzer, by way of atheris, keeps inputs that reach new lines, and changes
those. Both kinds of changes are used: libFuzzer's own of bytes, and ours of trees. Only what ``guide`` imports is
instrumented, so nothing may have imported the targets before.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from fuzz.mutation import CORPUS, inputs_of, names

from .mutation import Mutator


def main() -> int:
    """The exit code: 1 if an input was treated wrongly."""
    options = _options()
    logging.lastResort = None  # lines are made, and go nowhere
    if options.guided and options.target:
        guide(options.target, options.seconds, options.seed)
    from .targets import TARGETS

    if options.target is None:
        for name, target in sorted(TARGETS.items()):
            print(f"{name:20} {target.about}")
        return 0
    if options.files:
        return max(_play(options.target, path.read_bytes(), keep=False) for path in options.files)
    return _fuzz(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="?", choices=names(), help="what to fuzz; nothing lists them")
    parser.add_argument("files", nargs="*", type=Path, help="inputs to play instead")
    parser.add_argument("--seconds", type=int, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other changes (0)")
    parser.add_argument("--guided", action="store_true", help="keep what reaches new lines; needs atheris")
    return parser.parse_args()


def _fuzz(options: argparse.Namespace) -> int:
    mutator = Mutator([data for _, data in inputs_of(options.target)], options.seed)
    end, played, wrong = time.monotonic() + options.seconds, 0, 0
    while time.monotonic() < end and wrong < 20:
        played += 1
        wrong += _play(options.target, mutator.fresh())
    print(f"{options.target}: {played} inputs, {wrong} treated wrongly")
    return 1 if wrong else 0


def _play(name: str, data: bytes, *, keep: bool = True) -> int:
    from .targets import TARGETS

    finding = TARGETS[name].finding(data)
    if finding is None:
        return 0
    kept = Path(f"fuzz-{name}-{hashlib.sha256(data).hexdigest()[:12]}")
    if keep:
        kept.write_bytes(data)
    print(f"{name}, {kept if keep else 'this input'}: {data[:200]!r}\n{finding}", flush=True)
    return 1


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


if __name__ == "__main__":
    sys.exit(main())
