"""The conformance kit: its cases fit the schema, its README counts right, its generated cases can be made again."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from corpus import cases, kit
from jsonschema import Draft202012Validator
from kit_cases import FOLDER, files, read, write
from make_cases import FAMILIES, STEPS, generated, hard, nested, nested_answer, searched, tidy

Json = dict[str, Any]
TRANSCRIBED = ("cases", "cases-1.37-dev", "interrupt")
FILES = {path.name.partition(".")[0]: path for path in files("allocator")}
SCHEMA = json.loads((FOLDER / "allocator.schema.json").read_text())
README = (FOLDER / "README.md").read_text()


def test_there_are_thousands_of_cases_each_with_a_name_of_its_own() -> None:
    names = Counter(case["name"] for file in FILES for case in kit(f"allocator/{file}"))
    assert names.total() >= 3000
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("file", FILES)
def test_cases_fit_the_schema(file: str) -> None:
    """Of the generated ones, which are all made alike, every eighth is looked at: a look takes milliseconds."""
    validator = Draft202012Validator(SCHEMA)
    step = 8 if file == "generated" else 1
    wrong = {
        case["name"]: f"{error.json_path}: {error.message[:200]}"
        for case in islice(kit(f"allocator/{file}"), 0, None, step)
        for error in validator.iter_errors(case)
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"mode": "best"}, "$.mode"),
        ({"features": ["DRAUnheardOf"]}, "$.features[0]"),
        ({"nodes": []}, "$.nodes"),
        ({"slices": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}]}, "$.slices[0]"),
        (
            {"expect": [{"semantics": ["documented"], "origin": "x", "answers": [{"node": "n"}]}]},
            "$.expect[0].answers[0]",
        ),
        ({"unknown": 1}, "$"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_schema_refuses_what_is_no_case(fields: Json, path: str) -> None:
    broken = {**kit("allocator/semantics")[0], **fields}
    assert any(error.json_path.startswith(path) for error in Draft202012Validator(SCHEMA).iter_errors(broken))


def test_every_answer_names_its_origin_and_only_recorded_ones_name_kubernetes() -> None:
    origins = {
        (file, expectation["origin"].partition(",")[0])
        for file in FILES
        for case in kit(f"allocator/{file}")
        for expectation in case["expect"]
        if "defect" not in expectation["semantics"]
    }
    searched = "exhaustive search in the documented order"
    assert origins == {
        ("random", "Kubernetes 1.36.2"),
        ("random", searched),
        ("semantics", "Kubernetes 1.36.2"),
        ("semantics", searched),
        ("deviations", "the API documentation"),
        ("generated", searched),
        ("hard", searched),
        ("hard", "counting: there are too few devices"),
        ("hard", "induction: request i accepts devices 0 to i only"),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_generated_cases_come_out_the_same_again(family: str) -> None:
    _, count = FAMILIES[family]
    ours = [case for case in kit("allocator/generated") if case["family"] == family]
    assert len(ours) == count
    assert list(islice(generated(family, count), 25)) == ours[:25]


def test_nested_candidates_have_the_answer_that_induction_gives() -> None:
    (found,) = searched(tidy(nested(6)), STEPS) or []
    assert found == nested_answer(6)


def test_nothing_is_taken_from_tests_of_other_projects() -> None:
    """Where those are at hand: no problem of the kit is one of theirs."""
    theirs = {fingerprint(case) for file in TRANSCRIBED for case in cases(f"allocator/{file}.json")}
    assert [case["name"] for file in FILES for case in kit(f"allocator/{file}") if fingerprint(case) in theirs] == []
    selectors = {case["expression"] for case in cases("cel/cases.json") if case["source"] != "project"}
    names = {case["name"] for case in cases("cel/cases.json") if case["source"] != "project"}
    ours = kit("cel/selectors")
    assert not names & {case["name"] for case in ours}
    assert len(selectors & {case["expression"] for case in ours}) < 10  # `true` and the like


def fingerprint(case: Json) -> str:
    return json.dumps([case["classes"], case["slices"], case["claims"]], sort_keys=True)


def test_hard_cases_come_out_the_same_again() -> None:
    """The first of them; the others take the exhaustive search seconds."""
    assert list(islice(hard(), 5)) == kit("allocator/hard")[:5]


def test_the_same_cases_give_the_same_bytes(tmp_path: Path) -> None:
    cases = kit("allocator/deviations")
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl.gz", cases)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert list(read(tmp_path / "a.jsonl.gz")) == cases


def test_the_readme_counts_right() -> None:
    rows = re.findall(r"^\| `(\w+/\w+)\.jsonl\.gz` \| ([\d,]+) \|", README, re.MULTILINE)
    counted = {name: int(count.replace(",", "")) for name, count in rows}
    assert counted == {f"{path.parent.name}/{path.name.partition('.')[0]}": lines(path) for path in every_file()}
    by_semantics = {
        name: int(n.replace(",", "")) for name, n in re.findall(r"^\| `(\w+)`.*\| ([\d,]+) \|$", README, re.M)
    }
    for semantics, count in by_semantics.items():
        known = [case for file in FILES for case in kit(f"allocator/{file}") if answered(case, semantics)]
        assert len(known) == count, semantics


def every_file() -> list[Path]:
    return [*files("allocator"), *files("cel")]


def lines(path: Path) -> int:
    return gzip.decompress(path.read_bytes()).count(b"\n")


def answered(case: Json, semantics: str) -> bool:
    return any(semantics in expectation["semantics"] for expectation in case["expect"])


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", README)
    assert [target for target in targets if not (FOLDER / target).exists()] == []
