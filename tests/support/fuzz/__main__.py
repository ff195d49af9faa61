"""Fuzzing of every decoder that reads what a user or a peer wrote.

A target takes bytes: it accepts them or raises one of its documented errors. Anything else is a defect: another
exception, more than its share of processor time, or memory without bound. ``targets`` has one line per target,
``tests/fuzz/corpus`` a folder for each with inputs to start from, among them one for each defect that was found. The
suite plays the corpus and a short seeded run of changes; for hours::

    PYTHONPATH=tests/support .venv/bin/python -m fuzz                      # lists the targets
    PYTHONPATH=tests/support .venv/bin/python -m fuzz cdi --seconds 3600
    PYTHONPATH=tests/support .venv/bin/python -m fuzz cdi --seconds 3600 --guided   # needs: pip install atheris

A finding is written to the current folder; ``python -m fuzz TARGET FILE`` plays it again, and a fixed one belongs into
the corpus. Inputs change as bytes, as text with words of their corpus, and as trees where they are JSON. Trees matter
most: a byte that is changed in JSON seldom leaves JSON, and a decoder then refuses all alike.

With ``--guided`` libFuzzer, by way of atheris, keeps inputs that reach new lines, and changes those, in its own ways
and in ours. Only what ``guide`` imports is instrumented, so nothing may have imported the targets before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"


def names() -> list[str]:
    """The targets, each of which has a folder; known without an import of what they run."""
    return sorted(path.name for path in CORPUS.iterdir())


def inputs_of(target: str) -> list[tuple[str, bytes]]:
    """Name and content of each input of a target."""
    return [(path.name, path.read_bytes()) for path in sorted((CORPUS / target).iterdir())]


# --- Changes inputs, as bytes, as text with words of its corpus, and as trees where they are JSON ---

LONGEST = 1 << 16
_WORD = re.compile(rb"[A-Za-z0-9_.$/-]+|[^\sA-Za-z0-9_]")
_ODD = (
    b"", b"\0", b"\n", b"\r\n\r\n", b"\xff\xfe", b"\xc3", "ä\u2028".encode(), b"null", b"true", b"-1", b"0", b"1e999",
    b"NaN", b"9223372036854775808", b"-9223372036854775809", b"1.5", b"0x10", b"%00", b"%ff", b"{}", b"[]", b"[{",
    b'""', b"'", b"&a ", b"*a", b"<<: ", b"!!int ", b"!!python/object:os.system ", b"2001-99-99", b"- ", b": ",
    b"---\n", b"../", b"{{", b'{"a":' * 1200, b"[" * 1200,
)  # fmt: skip
_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1.5, -0.0, 1e308, "", " ", "a", "A_b",
    "\0", "\ud800", "ä" * 300, "1Gi", "-1", "1e9999999999", "2020-01-01T00:00:00Z", "9999-99-99T99:99:99Z", "../x", "=",
    [], {}, [None], {"": None}, [[]], "x" * 5000, "v1", "Pod", "true", "device.attributes", "%",
)  # fmt: skip


class Mutator:
    """Changes inputs of one corpus; the same seed gives the same changes."""

    def __init__(self, corpus: Sequence[bytes], seed: int) -> None:
        self._corpus = [*corpus] or [b""]
        self._random = random.Random(seed)
        self._words = sorted({word for entry in self._corpus for word in _WORD.findall(entry[:LONGEST])}) or [b"a"]
        trees = [tree for entry in self._corpus if (tree := _tree(entry)) is not None]
        self._parts = [part for tree in trees for part in _values(tree)] or [{}]

    def fresh(self) -> bytes:
        """A changed entry of the corpus."""
        return self.changed(self._random.choice(self._corpus))

    def changed(self, data: bytes) -> bytes:
        """The input with one to five changes."""
        for _ in range(self._random.choice((1, 1, 1, 2, 3, 5))):
            tree = _tree(data) if self._random.random() < 0.8 else None
            data = self._bytes(data) if tree is None else _text(self._grafted(tree), data)
        return data[:LONGEST]

    def _bytes(self, data: bytes) -> bytes:
        chance = self._random
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 0, 1, 1, 2, 4, 16, 64)))
        other = chance.choice(self._corpus)
        at = chance.randrange(len(other) + 1)
        change: Callable[[], bytes] = chance.choice(
            (
                lambda: bytes([chance.randrange(256)]),
                lambda: chance.choice(_ODD),
                lambda: chance.choice(self._words),
                lambda: b"",
                lambda: data[start:end] * chance.choice((2, 3, 50)),
                lambda: other[at : at + chance.choice((1, 8, 64))],
                lambda: chance.choice(_ODD) * chance.choice((2, 200)),
                lambda: b" ".join(chance.choices(self._words, k=3)),
            )
        )
        return data[:start] + change() + data[end:]

    def _grafted(self, tree: Any) -> Any:
        """A copy of the tree in which one value is another."""
        spot = self._random.randrange(_size(tree))
        return self._at(tree, spot)

    def _at(self, tree: Any, spot: int) -> Any:
        if spot == 0:
            return self._other(tree)
        spot -= 1
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            size = _size(value)
            if spot < size:
                copy = dict(tree) if isinstance(tree, dict) else list(tree)
                copy[key] = self._at(value, spot)
                return copy
            spot -= size
        return tree

    def _other(self, value: Any) -> Any:
        chance = self._random
        kind = chance.randrange(7)
        if kind == 0 and isinstance(value, dict) and value:
            return {key: each for key, each in value.items() if key != chance.choice([*value])}
        if kind == 1 and isinstance(value, dict):
            return {**value, chance.choice(self._words).decode(errors="replace"): self._any()}
        if kind in (2, 3) and isinstance(value, list):
            return [*value, chance.choice(value) if value else self._any()] if kind == 2 else value[1:]
        if kind == 4:
            return [value]
        if kind == 5 and isinstance(value, str):
            return self._bytes(value.encode(errors="replace")).decode(errors="replace")
        return self._any()

    def _any(self) -> Any:
        return self._random.choice(_ODD_VALUES if self._random.random() < 0.5 else self._parts)


def _tree(data: bytes) -> Any:
    """The JSON of an input: of all of it, or of its last line (a request's body); None if there is none."""
    if b"{" not in data and b"[" not in data:
        return None
    try:
        found = json.loads(data.rpartition(b"\n")[2])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _text(tree: Any, data: bytes) -> bytes:
    """The input with another tree in the place of its own."""
    head, line, _ = data.rpartition(b"\n")
    try:
        return head + line + json.dumps(tree).encode()
    except RecursionError:
        return data


def _values(tree: Any) -> list[Any]:
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [tree, *(value for child in children for value in _values(child))]


def _size(tree: Any) -> int:
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return 1 + sum(map(_size, children))


def main() -> int:
    """The exit code: 1 if an input was treated wrongly."""
    options = _options()
    logging.lastResort = None  # lines are made, and go nowhere
    if options.guided and options.target:
        guide(options.target, options.seconds, options.seed)
    from fuzz.targets import TARGETS

    if options.target is None:
        for name, target in sorted(TARGETS.items()):
            print(f"{name:20} {target.about}")
        return 0
    if options.files:
        return max(_play(options.target, path.read_bytes(), keep=False) for path in options.files)
    return _fuzz(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    from fuzz.targets import TARGETS

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
        from fuzz.targets import TARGETS
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
