"""``dra-operator cel``: cases from a file, and one expression on published devices."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from dra_cel import PreparedDevice, Selector
from dra_operator.commands import cel_command

SLICES = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: first}
spec:
  driver: gpu.example.com
  nodeName: node-1
  pool: {name: node-1, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: A100}}}
  - {name: gpu-1, attributes: {family: {string: ampere}}}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceSlice
metadata: {name: second}
spec:
  driver: gpu.example.com
  nodeName: node-2
  pool: {name: node-2, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, basic: {attributes: {model: {string: H100}}}}
"""
MODEL = 'device.attributes["gpu.example.com"].model == "A100"'


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cel_command.add_arguments(parser)
    return cel_command.run(parser.parse_args(arguments))


def answers(tmp_path: Path, document: object, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(document))
    assert call(str(file), *more) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_answers_every_case_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "devices": {"gpu": {"driver": "gpu.example.com", "attributes": {"model": {"string": "A100"}}}},
        "cases": [
            {"name": "matches", "expression": MODEL, "device": "gpu"},
            {"name": "does not compile", "expression": "nosuch", "device": "gpu"},
            {"name": "fails", "expression": 'device.attributes["x"].y == 1', "device": "gpu"},
            {"name": "costs too much", "expression": MODEL, "device": "gpu", "costLimit": 2},
        ],
    }
    said = answers(tmp_path, document, capsys)
    assert [(line["name"], line["kind"], line["error_kind"]) for line in said] == [
        ("matches", "match", None),
        ("does not compile", "compile_error", "undeclared-reference"),
        ("fails", "runtime_error", "no-such-key"),
        ("costs too much", "runtime_error", "cost-limit"),
    ]
    assert (said[0]["match"], said[0]["max_cost"], said[0]["actual_cost"]) == (True, 5, 5)


def test_failing_evaluations_are_timed_like_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [{"name": "fails", "expression": 'device.attributes["x"].y == 1', "device": {"driver": "a"}}]
    (line,) = answers(tmp_path, cases, capsys, "--repeat", "3")
    assert line["kind"] == "runtime_error"
    assert line["micros"] > 0


@pytest.mark.parametrize("repeat", [1, 2, 51, 120])
def test_the_mean_time_is_that_of_as_many_evaluations_as_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, repeat: int
) -> None:
    """The clock moves at an evaluation alone."""
    moment = 0.0

    def matches(selector: Selector, device: PreparedDevice) -> bool:
        nonlocal moment
        moment += 1e-6
        return True

    monkeypatch.setattr(Selector, "matches", matches)
    monkeypatch.setattr("time.perf_counter", lambda: moment)
    cases = [{"name": "one", "expression": "device.driver == 'a'", "device": {"driver": "a"}}]
    (line,) = answers(tmp_path, cases, capsys, "--repeat", str(repeat))
    assert line["micros"] == 1.0
    assert round(moment * 1e6) == repeat


def test_a_plain_list_of_cases_may_hold_its_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [{"name": "one", "expression": "device.driver == 'a'", "device": {"driver": "a"}}]
    (line,) = answers(tmp_path, cases, capsys, "--repeat", "20")
    assert line["match"] is True
    assert line["micros"] > 0


def test_tries_an_expression_on_devices_of_any_api_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "slices.yaml"
    file.write_text(SLICES)
    assert call("-e", MODEL, "-f", str(file)) == 0
    out = capsys.readouterr().out.splitlines()
    assert "gpu.example.com/node-1/gpu-0: matches (cost 5)" in out
    assert "gpu.example.com/node-2/gpu-0: does not match (cost 5)" in out
    (failed,) = (line for line in out if "gpu-1" in line)
    assert "does not publish gpu.example.com/model, but gpu.example.com/family" in failed
    assert out[-1] == "1 matches, 1 does not match, 1 fails"


def test_a_release_decides_what_a_device_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "slices.yaml"
    file.write_text(SLICES)
    expression = ["--new", "-e", "device.allowMultipleAllocations", "-f", str(file), "--kubernetes-version"]
    assert call(*expression, "1.36") == 0
    assert call(*expression, "1.35") == 1
    assert "undefined field 'allowMultipleAllocations'" in capsys.readouterr().err


def test_a_selector_that_does_not_compile_is_shown_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slices.yaml"
    file.write_text(SLICES)
    assert call("-e", "device.nosuch == 1", "-f", str(file)) == 1
    assert "undefined field 'nosuch'\n | device.nosuch == 1\n |       ^" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "Expecting"),
        ('{"cases": 1}', "expected a list of cases"),
        ('[{"device": {"driver": "a"}}]', "case 0"),
        ('[{"expression": 7, "device": {}}]', "case 0: expression: Expected `str`"),
        ('[{"expression": "true"}]', "case 0: device is missing"),
        ('[{"expression": "true", "device": ["a"]}]', "case 0: device: Expected `object`"),
        ('[{"expression": "true", "device": {"driver": 7}}]', "case 0: device: driver: Expected `str`"),
        ('[{"expression": "true", "device": {}, "costLimit": "a"}]', "case 0: costLimit: Expected `int`"),
        ('{"devices": {"a": {}}, "cases": [{"expression": "true", "device": "nosuch"}]}', "'nosuch'; it has a"),
        ('[{"expression": "true", "device": "nosuch"}]', "the file has no device 'nosuch'; it has "),
        ('{"devices": [], "cases": []}', "devices: Expected `object`"),
        ('[{"expression": "true", "device": {"attributes": {"a": {"int": "x"}}}}]', "attributes"),
    ],
    ids=[
        "no JSON",
        "no list",
        "a case without expression",
        "an expression that is no text",
        "a case without device",
        "a device that is no object",
        "a driver that is no text",
        "a limit that is no number",
        "an unknown device",
        "a device of a file without any",
        "devices that are no table",
        "a malformed device",
    ],
)
def test_unusable_files_are_named(
    content: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cases.json"
    file.write_text(content)
    assert call(str(file)) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert complaint in error


def test_missing_arguments_and_files_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 2
    assert call("cases.json", "-e", "true") == 2
    assert call("cases.json", "-f", "slices.yaml") == 2
    assert call("cases.json", "--repeat", "-1") == 2
    assert call("-e", "true") == 2
    assert call("-e", "true", "-f", str(tmp_path / "nosuch.yaml")) == 2
    assert "nosuch.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x.json", "-e", "true"],
        ["-e", "true"],
        ["x.json", "-f", "y.yaml"],
        ["x.json", "--repeat", "-1"],
        ["x.json", "--new"],
        ["x.json", "--list-attributes"],
        ["x.json", "--kubernetes-version", "1.35"],
        ["x.json", "--no-consumable-capacity"],
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    assert capsys.readouterr().err.startswith(("dra-operator cel: give either", "dra-operator cel: --"))
