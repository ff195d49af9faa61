"""The command: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from dra_driver_test.cli import main
from dra_driver_test.command import as_json, as_junit, line, summary
from dra_driver_test.errors import BenchError
from dra_driver_test.harness.driver import CommandLauncher
from dra_driver_test.harness.waiting import Limits
from dra_driver_test.kit import Check, Level, Result, Verdict, all_checks

ROOT = Path(__file__).resolve().parents[2]
BAD = [sys.executable, str(ROOT / "tests/support/bad_driver.py"), "{kubelet}"]
QUICK = ["prepare.*", "cdi.ids-*", "restart.prepares-the-same-after-a-kill"]


async def _nothing(bench: object) -> None: ...


def result(verdict: Verdict, text: str = "") -> Result:
    check = Check("noun.rule", "The rule.\n\nWhy.", ("KM-14",), Level.MUST, True, False, False, False, False, _nothing)
    return Result(check, verdict, text, 0.25)


def test_a_driver_without_faults_passes_as_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--junit", str(tmp_path / "out.xml")]
    code = main([*files, *(word for one in QUICK for word in ("--check", one)), "--", *BAD])
    printed = capsys.readouterr().out
    assert code == 0, printed
    report = json.loads((tmp_path / "out.json").read_text())
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (report["driver"], report["counts"]["failed"]) == ("bad.example.com", 0)
    assert report["counts"]["passed"] > 10
    assert int(suite.attrib["tests"]) == len(report["checks"]) == len(suite)
    assert printed.splitlines()[0] == f"Driver bad.example.com, {len(suite)} checks."


def test_a_failed_check_is_exit_code_1_and_says_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--check", "prepare.names-the-allocated-device", "--", *BAD, "it prepares another device"])
    printed = capsys.readouterr().out
    assert code == 1
    assert "gpu-3" in printed
    assert "rule: The answer has the pool and the device of the claim's allocation" in printed
    assert printed.splitlines()[-1].startswith("0 passed, 1 failed")


def test_a_page_that_a_check_cites_speaks_of_its_subject() -> None:
    """People who want to know why look there."""
    for check in all_checks():
        for page in (rule for rule in check.references if rule.startswith("docs/")):
            subject = {"registration": "sockets"}[check.name.partition(".")[0]]
            assert subject in (ROOT / page).read_text(), f"{check.name} cites {page}"


def test_a_check_that_is_not_judged_is_exit_code_4_and_says_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = ["--check", "claims.follow-a-new-allocation", "--check", "slices.are-published"]
    code = main([*checks, "--json", str(tmp_path / "out.json"), "--", *BAD, "all its devices exclude each other"])
    printed = capsys.readouterr().out
    assert code == 4
    assert "test it where it has more devices" in printed
    assert printed.splitlines()[-1].startswith("1 passed, 0 failed, 0 warned, 1 not judged")
    assert json.loads((tmp_path / "out.json").read_text())["counts"]["not judged"] == 1


def test_a_failed_check_counts_more_than_one_that_is_not_judged() -> None:
    checks = ["--check", "claims.follow-a-new-allocation", "--check", "prepare.accepts-an-empty-call"]
    assert main([*checks, "--", *BAD, "all its devices exclude each other", "an empty prepare call fails"]) == 1


def test_a_driver_that_ends_at_once_is_exit_code_3_with_its_last_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--", sys.executable, "-c", "raise SystemExit('no hardware')"]) == 3
    said = capsys.readouterr().err
    assert "there is no driver to test" in said
    assert "no hardware" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either the command"),
        (["--check", "nothing.*", "--", "driver"], "no check fits 'nothing.*'"),
        (["--registry", "/tmp", "--", "driver"], "give either the command"),
        (["--json", "/no/such/file", "--", "driver"], "cannot write /no/such/file: make its folder first"),
        (["-j", "2", "--kubeconfig", "k", "--", "driver"], "-j needs the kit's own API server"),
        (["--registry", "/tmp"], "--cdi-dir and --kubeconfig"),
        (["--driver", "gpu.example.com", "--", "driver"], "give --registry with it"),
        (["--registry", "/no/such", "--cdi-dir", "/tmp", "--kubeconfig", "k"], "/no/such is not a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2_with_a_remedy(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_each_result_says_how_many_checks_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs have a node each; the files have the order of the checks."""
    checks = ["--check", "prepare.a*", "--check", "registration.is-a-*"]
    code = main(["-j", "2", "--json", str(tmp_path / "out.json"), *checks, "--", *BAD])
    printed = capsys.readouterr().out
    assert code == 0, printed
    names = [one["name"] for one in json.loads((tmp_path / "out.json").read_text())["checks"]]
    assert names == [one.name for one in all_checks() if one.name in names]
    assert [text.split()[0] for text in printed.splitlines()[1:-1]] == [
        f"{number}/{len(names)}" for number in range(1, len(names) + 1)
    ]


def test_a_quick_run_leaves_out_what_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "prepare.answers-a-claim " in printed
    assert "damage.gives-nothing-wrong " not in printed


def test_an_interrupted_run_ends_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("dra_driver_test.command.execute", interrupted)
    assert main(["--", "driver"]) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_takes_its_driver_along(short_path: Path, number: signal.Signals) -> None:
    """As at the end of a time-out of a CI system, or when a terminal is closed."""
    there = short_path / "there"
    driver = [sys.executable, "-c", f"import os, time; os.mkfifo({str(there)!r}); time.sleep(60)"]
    kit = [sys.executable, "-m", "dra_driver_test.cli", "--", *driver]
    with subprocess.Popen(kit, env={**os.environ, "TMPDIR": str(short_path)}, stdout=subprocess.PIPE) as process:
        while not there.exists():
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert list(short_path.iterdir()) == [there]
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _says(path, str(there))]
    assert found == []


def _says(path: Path, text: str) -> bool:
    try:
        return text in path.read_text()
    except OSError:  # it has just ended
        return False


def test_a_list_whose_reader_has_ended_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dra_driver_test.cli", "--list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--parameters", "{", "is not JSON"),
        ("--parameters", "[]", "'[]' is not a JSON object"),
        ("-j", "0", "'0' is not a number from 1 to 16"),
        ("-j", "17", "'17' is not a number from 1 to 16"),
        ("-j", "two", "'two' is not a number from 1 to 16"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_wrong_usage(
    option: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, text, "--", "driver"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", " ", []])
def test_an_empty_command_is_refused_before_anything_starts(command: str | list[str], tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="the command is empty: pass the command line"):
        CommandLauncher(command, tmp_path / "log", Limits())


def test_the_list_explains_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    for check in all_checks():
        assert f"{check.name} ({check.level}; " in printed
        assert check.summary.endswith((".", ":")) or "\n" in check.explanation, check.name
    assert len(all_checks()) >= 60


def test_every_check_has_a_reference_and_an_explanation() -> None:
    assert [check.name for check in all_checks() if not check.references or not check.explanation] == []


def test_patterns_choose_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--check", "reboot.*", "--check", "cdi.ids-are-given"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line and line[0] != " "]
    assert {name.partition(".")[0] for name in names} == {"reboot", "cdi"}
    assert sum(name.startswith("cdi") for name in names) == 1


def test_the_table_says_what_is_wrong_and_which_rule() -> None:
    assert line(result(Verdict.PASSED)).split() == ["passed", "noun.rule", "0.25", "s"]
    assert line(result(Verdict.SKIPPED, "no devices")).splitlines()[1:] == ["           no devices"]
    assert line(result(Verdict.FAILED, "bad\nvery")).splitlines()[1:] == [
        "           bad",
        "           very",
        "           rule: The rule. (KM-14)",
    ]
    counts = ", ".join(f"1 {word}" for word in ("passed", "failed", "warned", "not judged", "skipped"))
    assert summary([result(verdict) for verdict in Verdict], 0.44) == f"{counts} in 0.4 s", "not the sum of all"


def test_junit_has_failures_and_skips_and_no_byte_that_xml_forbids() -> None:
    results = [
        result(Verdict.FAILED, "bad \x1b[31m"),
        result(Verdict.SKIPPED, "why"),
        result(Verdict.WARNED, "hm"),
        result(Verdict.NOT_JUDGED, "no device"),
    ]
    suite = ElementTree.fromstring(as_junit("d", results))
    assert [[child.tag for child in case] for case in suite] == [["failure"], ["skipped"], ["system-out"], ["error"]]
    assert [suite.attrib[name] for name in ("failures", "skipped", "errors")] == ["1", "1", "1"]
    assert suite[3][0].attrib == {"type": "not judged", "message": "no device"}
    assert suite[0][0].text == "bad [31m"


def test_json_has_every_result() -> None:
    (check,) = json.loads(as_json("d", [result(Verdict.WARNED, "hm")]))["checks"]
    assert (check["name"], check["verdict"], check["text"], check["level"]) == ("noun.rule", "warned", "hm", "must")
