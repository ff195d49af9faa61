"""Each decoder of foreign input accepts what it gets, or refuses it as documented: the corpus, and changes of it.

The command ``python -m fuzz`` does the same for hours (CONTRIBUTING.md).
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from fuzz.__main__ import CORPUS, Mutator, inputs_of
from fuzz.targets import TARGETS, Target
from rounds import fewer

SUPPORT = CORPUS.parents[1] / "support"


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_taken_or_refused(name: str) -> None:
    for file, data in inputs_of(name):
        assert TARGETS[name].finding(data) is None, file


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_taken_or_refused(name: str) -> None:
    mutator = Mutator([data for _, data in inputs_of(name)], seed=1)
    for _ in range(fewer(TARGETS[name].rounds)):
        data = mutator.fresh()
        assert TARGETS[name].finding(data) is None, data


def test_each_folder_of_the_corpus_has_its_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def test_naming_the_targets_imports_nothing_that_could_not_be_instrumented_then() -> None:
    code = "import sys, fuzz.__main__; print([name for name in sys.modules if name.startswith('dra_')])"
    command, here = [sys.executable, "-c", code], {"PYTHONPATH": str(SUPPORT)}
    found = subprocess.run(command, env=here, capture_output=True, check=True, timeout=60)
    assert found.stdout == b"[]\n"


def _endless() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda data: None, None),
        (lambda data: data.decode(), None),
        (lambda data: {}[data], "KeyError"),
        (lambda data: _endless(), "processor time"),
        (lambda data: bytearray(1 << 34), "MB"),
    ],
    ids=["accepted", "refused", "another error", "endless", "too large"],
)
def test_a_finding_is_what_is_neither_accepted_nor_refused(
    monkeypatch: pytest.MonkeyPatch, run: object, said: str | None
) -> None:
    monkeypatch.setattr("fuzz.targets.SECONDS", 0.1)
    found = Target(run, (UnicodeDecodeError,), "").finding(b"\xff")  # type: ignore[arg-type]  # of the table
    assert found is None if said is None else said in (found or "")
