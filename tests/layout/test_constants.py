"""Numbers that stand alone in a file: their names say what is counted, and mean one thing in a package.

A number that is given has the words of what gives it: flags of the kernel, costs of CEL, limits of the API.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    "operator/dra_operator",
    "simulator/dra_simulator",
    "kube/dra_kube",
    "kubeletplugin/dra_kubeletplugin",
    "devcluster/dra_driver_test",
    "devcluster/dra_devcluster",
    "cel/dra_cel",
    "ledger/dra_ledger",
    "proto/dra_api",
    "proto/dra_cdi",
)

TIME_AND_SIZE: Final = "SECONDS DAYS NANOS NANOSECONDS BYTES CHARACTERS LETTERS HEIGHT WIDTH PIXELS WORDS BLOCKS"
PARTS: Final = "PERCENT MILLI NANO BILLIONTHS DIVISOR FACTOR MILLIONTHS SHARE SIMILARITY SUM THOUSANDTHS WEIGHT SCORE"
WORK: Final = "ATTEMPTS DRAWS POINTS QUESTIONS COST EFFORT EVALUATIONS FAILURES LOOKS PAUSES STEP STEPS UNITS"
TYPES: Final = "INT UINT FLAG CHANNEL MODE EXPONENT MASK MODULUS"
NAMES: Final = "SEED SEEDS DIGITS STATE VALUE CODE CODES VERSION NUMBER PRIORITY QUANTITY"
THINGS: Final = """
    ADDRESSES ANSWERS ATTRIBUTES CALLS CANCELLATIONS CANDIDATES CELLS CHANGES CLAIMS CLASSES CONDITIONS CONFIGS
    CONNECTIONS CONSTRAINTS CONSUMERS CORES COUNT COUNTERS DEVICES DRIVERS ELEMENTS ENTRIES EVENTS FILES FIXES GANGS
    FINDINGS GPUS GROUPS GUESSES HANDSHAKES HINTS HOLDERS INSTANCES INSTRUCTIONS JOBS KINDS LABELS LEVELS LINES MANAGERS
    MODES MOMENTS NAMES NAMESPACES NODES OBJECTS OPERATIONS PAGES PAIRS PIECES PODS POOLS RANKINGS REASONS REMEDIES
    REQUESTS RESOURCES RESULTS RIGHTS RULES SELECTIONS SELECTORS SERIES SETS SLICES STATES STREAMS SUBREQUESTS SUBSETS
    TAINTS TEMPLATES TERMS THINGS TILES TOKENS TOPOLOGIES TROUBLES TURNS UIDS VALUES WORKERS WRITES
"""
COUNTED: Final = frozenset(" ".join((TIME_AND_SIZE, PARTS, WORK, TYPES, NAMES, THINGS)).split())
"""The units and things that there are. A new one is a line here."""


def numbers(source: str) -> Iterator[str]:
    """The names at the top of a file that are set to a number, or to several of them."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from _set_to_numbers(target, node.value)


def _set_to_numbers(target: ast.expr, value: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from _set_to_numbers(one, its)
    elif isinstance(target, ast.Name) and _is_number(value):
        yield target.id


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float()):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.Tuple(elts=elements):
            return bool(elements) and all(map(_is_number, elements))
        case _:
            return False


def has_a_unit(name: str) -> bool:
    """Whether a word of the name says what the number counts."""
    return not COUNTED.isdisjoint(name.split("_"))


@pytest.fixture(scope="module", params=PACKAGES)
def places(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Each name of a number in a package, and the files that have one of that name."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / request.param).rglob("*.py")):
        for name in numbers(file.read_text()):
            found.setdefault(name.strip("_"), []).append(str(file.relative_to(ROOT)))
    return found


def test_the_name_of_a_number_says_what_it_counts(places: dict[str, list[str]]) -> None:
    assert {name: files for name, files in places.items() if not has_a_unit(name)} == {}


def test_no_two_files_have_a_number_of_the_same_name(places: dict[str, list[str]]) -> None:
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_numbers_are_found_however_they_are_written() -> None:
    source = (
        "A = 1\nB: Final = 2 << 20\nC, D = 3.0, 'x'\nE = (1.0, 2.0)\nF = -1\nG = True\nH = len('x')\nI: int\nJ = ()\n"
    )
    assert list(numbers(source)) == ["A", "B", "C", "E", "F"]


@pytest.mark.parametrize(("name", "is_clear"), [("PATIENCE", False), ("PATIENCE_SECONDS", True), ("_MANY_NODES", True)])
def test_a_name_is_clear_if_it_has_a_unit_or_a_thing(name: str, is_clear: bool) -> None:
    assert has_a_unit(name) is is_clear
