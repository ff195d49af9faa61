"""The runner of the conformance kit: it finds nothing wrong with our allocator, and what is wrong with others."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from corpus import kit
from jsonschema import Draft202012Validator
from kit_cases import FOLDER, expected, problem, read
from kit_compare import Unreadable, cel_difference, difference, number
from rounds import LONG, a_third

Json = dict[str, Any]
CEL = [str(Path(sys.executable).parent / "dra-operator"), "cel", "-"]
SIMULATE = [
    str(Path(sys.executable).parent / "dra-operator"),
    "simulate",
    "-",
    "--kubernetes-version",
    "1.36",
    "--semantics",
]
HEAD = "import json, sys, time\nfor line in sys.stdin:\n    case = json.loads(line)\n"
NONE = "[{'node': node['metadata']['name'], 'outcome': 'none'} for node in case['nodes']]"
ANSWER = "    print(json.dumps({'name': case['name'], 'nodes': nodes}), flush=True)\n"


def run(*options: str, program: list[str]) -> subprocess.CompletedProcess[str]:
    """The runner, as its README shows it."""
    command = [sys.executable, str(FOLDER / "run.py"), *options, "--", *program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def written(folder: Path, body: str) -> list[str]:
    """A program that does this with each ``case``."""
    path = folder / "program.py"
    path.write_text(HEAD + body)
    return [sys.executable, str(path)]


def summary(folder: Path, *options: str, program: list[str], code: int) -> Json:
    """What the runner counted."""
    done = run("--json", str(folder / "summary.json"), *options, program=program)
    assert done.returncode == code, done.stdout + done.stderr
    found: Json = json.loads((folder / "summary.json").read_text())
    return found


@pytest.mark.parametrize(
    ("semantics", "only", "cases"),
    [
        pytest.param("documented", "[dhs]*", 211, marks=LONG),
        ("documented", "generated/*00", 24),
        pytest.param("reference", "random/*[05]", 130, marks=LONG),
    ],
)
def test_our_allocator_agrees(tmp_path: Path, semantics: str, only: str, cases: int) -> None:
    """All that are written by hand; some of the random ones: tests/allocator/test_corpus.py decides all in-process."""
    options = ["--semantics", semantics, "--only", only]
    found = summary(tmp_path, *options, program=[*SIMULATE, semantics], code=0)
    assert (found["cases"], found["total"]["agrees"]) == (cases, cases)


def test_answers_by_other_semantics_are_distinguished_from_wrong_ones(tmp_path: Path) -> None:
    options = ["--only", "random/pools*", "--semantics", "documented"]
    found = summary(tmp_path, *options, program=[*SIMULATE, "reference"], code=1)
    assert found["total"] == {"agrees": 12, "known deviation": 13, "differs": 0, "no answer": 0}
    assert found["families"]["random/poolstate"]["known deviation"] == 13
    assert "Kubernetes 1.36.2" in found["not agreeing"][0]["why"]


WRONG = {
    "says that nothing fits": (f"    nodes = {NONE}\n{ANSWER}", "differs", "allocated expected, got none"),
    "takes the wrong node": (
        f"    nodes = [{{**node, 'node': 'elsewhere'}} for node in {NONE}]\n{ANSWER}",
        "differs",
        "on node elsewhere",
    ),
    "tries no node": (f"    nodes = []\n{ANSWER}", "differs", "1 nodes expected to be tried, got 0"),
    "ends": ("    sys.exit(3)\n", "no answer", "ended with code 3"),
    "says nothing": ("    time.sleep(60)\n", "no answer", "no answer within 0.5 s"),
    "speaks no JSON": ("    print('hello', flush=True)\n", "no answer", "not JSON"),
    "answers another case": ('    print(\'{"name": "x"}\', flush=True)\n', "no answer", "not an answer to"),
    "leaves out the nodes": (
        "    print(json.dumps({'name': case['name']}), flush=True)\n",
        "no answer",
        "has no list nodes",
    ),
    "leaves out the results": (
        f"    nodes = [{{**node, 'outcome': 'allocated'}} for node in {NONE}]\n{ANSWER}",
        "no answer",
        "no list results",
    ),
}


@pytest.mark.parametrize(("body", "verdict", "why"), a_third([*WRONG.values()]), ids=a_third([*WRONG]))
def test_a_wrong_program_fails(tmp_path: Path, body: str, verdict: str, why: str) -> None:
    options = ["--only", "semantics/count-0", "--timeout", "0.5" if "sleep" in body else "30"]
    found = summary(tmp_path, *options, program=written(tmp_path, body), code=1)
    assert found["total"][verdict] == 1
    assert why in found["not agreeing"][0]["why"]


def test_our_cel_agrees(tmp_path: Path) -> None:
    found = summary(tmp_path, "--part", "cel", program=CEL, code=0)
    assert found["total"] == {"agrees": 1028, "known deviation": 0, "differs": 0, "no answer": 0}
    assert len(found["families"]) == 16


WRONG_CEL: dict[str, tuple[Json, str, str]] = {
    "says the opposite": ({"match": False}, "differs", "match true expected, got false"),
    "says a number": ({"match": 1}, "differs", "match true expected, got 1"),
    "says that it does not compile": (
        {"kind": "compile_error", "message": "no"},
        "differs",
        "kind match expected, got compile_error (no)",
    ),
    "knows no cost": ({"actual_cost": None}, "differs", "actual_cost 4 expected, got None"),
    "has another type": ({"output_type": "dyn"}, "differs", "output_type bool expected, got dyn"),
    "says nothing": ({"kind": None}, "no answer", "has no kind"),
}


@pytest.mark.parametrize(("change", "verdict", "why"), WRONG_CEL.values(), ids=WRONG_CEL)
def test_a_wrong_implementation_of_cel_fails(tmp_path: Path, change: Json, verdict: str, why: str) -> None:
    right = {"kind": "match", "match": True, "output_type": "bool", "max_cost": 4, "actual_cost": 4}
    program = written(tmp_path, f"    print(json.dumps({{'name': case['name'], **{right | change}}}), flush=True)\n")
    options = ["--part", "cel", "--only", "dra-basic/000/list=true"]
    found = summary(tmp_path, *options, program=program, code=1)
    assert found["total"][verdict] == 1
    assert why in found["not agreeing"][0]["why"]


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({"match": False}, {"outcome": 1, "errors": 1, "all": 1}),
        ({"output_type": "dyn"}, {"outcome": 0, "errors": 1, "all": 1}),
        ({"max_cost": 5}, {"outcome": 0, "errors": 0, "all": 1}),
    ],
    ids=["match", "output type", "cost"],
)
def test_a_selectors_answer_is_compared_as_deep_as_wanted(change: Json, codes: dict[str, int]) -> None:
    wanted = {"kind": "match", "match": True, "output_type": "bool", "max_cost": 4, "actual_cost": 4}
    for depth, code in codes.items():
        assert (cel_difference(wanted, wanted | change, depth) is not None) == code


def test_a_cost_that_depends_on_the_order_of_a_map_is_not_compared() -> None:
    wanted = {"kind": "match", "match": True, "actual_cost": 4, "actual_cost_unstable": True}
    assert cel_difference(wanted, {"kind": "match", "match": True, "actual_cost": 7}, "all") is None


def test_a_program_that_ends_at_one_case_is_started_again_for_the_next(tmp_path: Path) -> None:
    ending = "    if case['name'].endswith('all-in-use'):\n        sys.exit(1)\n"
    program = written(tmp_path, f"{ending}    nodes = {NONE}\n{ANSWER}")
    found = summary(tmp_path, "--only", "semantics/all-*", program=program, code=1)
    assert found["total"] == {"agrees": 1, "known deviation": 0, "differs": 7, "no answer": 1}


def test_a_program_that_says_too_much_is_started_again(tmp_path: Path) -> None:
    """Otherwise every later answer would be taken for that of the case before."""
    chatty = "    if case['name'].endswith('all-in-use'):\n        print('loading', flush=True)\n"
    program = written(tmp_path, f"{chatty}    nodes = {NONE}\n{ANSWER}")
    found = summary(tmp_path, "--only", "semantics/all-*", program=program, code=1)
    assert found["total"] == {"agrees": 1, "known deviation": 0, "differs": 7, "no answer": 1}


def test_a_wrong_device_is_found_unless_only_outcomes_count(tmp_path: Path) -> None:
    (case,) = (case for case in kit("allocator/semantics") if case["name"] == "semantics/tol-empty-op")
    answer = {"name": case["name"], "nodes": json.loads(json.dumps(expected(case, "documented")))}
    answer["nodes"][0]["results"][0]["devices"]["results"][0]["device"] = "another"
    program = written(tmp_path, f"    print({json.dumps(json.dumps(answer))}, flush=True)\n")
    only = ["--only", case["name"]]
    assert run(*only, program=program).returncode == 1
    assert run(*only, "--compare", "devices", program=program).returncode == 1
    assert run(*only, "--compare", "outcome", program=program).returncode == 0


@pytest.mark.parametrize(
    ("options", "program", "said"),
    [
        ([], ["/nowhere/to/be/found"], "/nowhere/to/be/found"),
        (["--only", "none/*"], [sys.executable], "no case"),
        (["--part", "cel", "--compare", "devices"], [sys.executable], "outcome, errors, all"),
        (["--file", "/nowhere/cases.jsonl"], [sys.executable], "/nowhere/cases.jsonl"),
    ],
    ids=["no program", "no case", "nothing to compare", "no file"],
)
def test_what_cannot_be_compared_ends_with_2(options: list[str], program: list[str], said: str) -> None:
    done = run(*options, program=program)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_readme_shows_what_is_printed() -> None:
    readme = (FOLDER / "README.md").read_text()
    shown = readme.split("--only 'random/ba*'")[1].split("```")[0].splitlines()[1:]
    done = run("--only", "random/ba*", program=[*SIMULATE, "documented"])
    assert done.stdout.splitlines() == shown


def test_a_program_under_test_sees_no_answers() -> None:
    case = kit("allocator/deviations")[0]
    assert case.keys() - problem(case).keys() == {"expect", "why"}


def test_answers_of_the_readme_fit_the_schema() -> None:
    schema = json.loads((FOLDER / "allocator.schema.json").read_text())
    validator = Draft202012Validator({**schema["$defs"]["answer"], "$defs": schema["$defs"]})
    for line in (FOLDER / "README.md").read_text().split("```json\n")[1].split("```")[0].splitlines():
        assert list(validator.iter_errors(json.loads(line))) == []


# --- comparing ----------------------------------------------------------------------------------


def node(*devices: Json, **more: Any) -> Json:
    return {"node": "n", "outcome": "allocated", "results": [{"devices": {"results": list(devices), **more}}]}


def config(source: str, *requests: str) -> Json:
    return {"source": source, "requests": list(requests), "opaque": {"driver": "d", "parameters": {}}}


A = {"request": "r", "driver": "d", "pool": "p", "device": "a"}
SHARED = {**A, "shareID": "x", "consumedCapacity": {"mem": "1Gi"}}


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        (node(A), node({**A, "adminAccess": False, "tolerations": []}), True),
        (node(A), node({**A, "adminAccess": True}), False),
        (node(A), node({**A, "shareID": "x"}), False),
        (node(SHARED), node({**SHARED, "shareID": "y", "consumedCapacity": {"mem": "1024Mi"}}), True),
        (node(SHARED), node({**SHARED, "consumedCapacity": {"mem": "1G"}}), False),
        (node(SHARED, SHARED), node(SHARED, {**SHARED, "shareID": "y"}), True),
        (node(SHARED, SHARED), node(SHARED, SHARED), False),
        (node(A, config=[config("FromClaim", "r")]), node(A, config=[config("FromClaim", "r")] * 2), True),
        (node(A, config=[config("FromClass", "r")]), node(A, config=[config("FromClass", "r")] * 2), False),
        (node(A), node(A, config=[config("FromClaim")]), False),
    ],
    ids=[
        "missing, false and empty are the same",
        "admin access",
        "a share where none is expected",
        "another share id, the same quantity",
        "another quantity",
        "two shares",
        "two shares with one id",
        "a claim's configuration twice",
        "a class's configuration twice",
        "configuration that is not expected",
    ],
)
def test_answers_are_compared_by_what_they_mean(wanted: Json, got: Json, same: bool) -> None:
    assert (difference([wanted], {"nodes": [got]}, "all") is None) is same


@pytest.mark.parametrize(
    ("text", "value"),
    [("1Ki", 1024), ("1.5k", 1500), ("100m", "0.1"), ("1e3", 1000), ("2E", 2 * 10**18), (7, 7), ("-3Gi", -3 * 2**30)],
)
def test_quantities_are_numbers(text: str | int, value: str | int) -> None:
    assert number(text) == Decimal(value)


def test_what_is_no_quantity_is_no_answer() -> None:
    with pytest.raises(Unreadable, match="no quantity"):
        number("much")


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("only", ["*", "semantics/all-*", "semantics/[!a]*", "none/*"])
def test_cases_are_chosen_by_their_names_wherever_a_line_has_them(tmp_path: Path, only: str) -> None:
    """A name that comes first is looked at before the rest is read."""
    every = kit("allocator/semantics")
    (tmp_path / "cases.jsonl").write_text(
        "".join(
            json.dumps(case if at % 2 else dict(reversed(case.items())), separators=(",", ":")) + "\n"
            for at, case in enumerate(every)
        )
    )
    chosen = [case["name"] for case in every if fnmatch.fnmatch(case["name"], only)]
    assert [case["name"] for case in read(tmp_path / "cases.jsonl", only)] == chosen
