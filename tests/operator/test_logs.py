"""How log lines look, as text and as JSON, and which there are at each verbosity."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import operator_process
from dra_operator.app.telemetry import JsonLines, NamespaceLines
from dra_operator.controllers import LogLine, tell
from supervised import LiveCluster


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ns/pod", "ns/pod"),
        (3, "3"),
        (["drv/n1/a", "drv/n1/b"], "drv/n1/a,drv/n1/b"),
        (lambda: ["made", "late"], "made,late"),
        ("two words", '"two words"'),
        ("", '""'),
        ([], '""'),
        ("a=b", '"a=b"'),
        ('a "quote"', '"a \\"quote\\""'),
        ("a line\nand ERROR a forged one", '"a line\\nand ERROR a forged one"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
    ],
)
def test_a_field_is_quoted_where_it_would_be_misread(value: object | Callable[[], object], text: str) -> None:
    assert str(LogLine("it happened", {"pod": "ns/pod", "field": value})) == f"it happened pod=ns/pod field={text}"


def record(message: object, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    trace = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("dra_operator.x", logging.WARNING, __file__, 1, message, arguments, trace)


def test_the_fields_of_a_line_are_keys_of_a_json_object() -> None:
    entry = json.loads(JsonLines().format(record(LogLine("pod bound", {"pod": "ns/pod", "devices": ["a", "b"]}))))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
    assert entry == {
        "level": "warning",
        "logger": "dra_operator.x",
        "message": "pod bound",
        "pod": "ns/pod",
        "devices": ["a", "b"],
    }


def test_a_text_that_is_no_unicode_still_makes_a_line() -> None:
    entry = json.loads(JsonLines().format(record(LogLine("it happened", {"pod": "ns/\ud800"}))))
    assert entry["pod"] == "ns/\\ud800"


def test_no_field_hides_what_every_json_object_has() -> None:
    entry = json.loads(
        JsonLines().format(record(LogLine("it happened", {"message": "m", "time": "t", "exception": "e"})))
    )
    assert (entry["message"], entry["message_"]) == ("it happened", "m")
    assert (entry["time_"], entry["exception_"]) == ("t", "e")
    assert "exception" not in entry


def test_a_plain_record_and_its_traceback_are_one_json_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        text = JsonLines().format(record("%s\nof %d", "one", 2, error=error))
    assert "\n" not in text
    entry = json.loads(text)
    assert entry["message"] == "one\nof 2"
    assert entry["exception"].endswith("ValueError: two\nlines")


def line(created: float, pod: str, level: int = logging.INFO, what: str = "pod refused") -> logging.LogRecord:
    record = logging.LogRecord("dra_operator", level, __file__, 0, LogLine(what, {"pod": pod}), (), None)
    record.created = created
    return record


def test_a_namespace_that_flaps_leaves_the_log_to_others_and_the_number_of_lines_is_said() -> None:
    limit = NamespaceLines()
    told: list[logging.LogRecord] = []
    for second in range(600):
        for number in range(20):
            told += filter(limit.filter, [line(second, f"flaps/pod-{number}")])
        told += filter(limit.filter, [line(second, "calm/pod")] if second % 5 == 0 else [])
    texts = [record.getMessage() for record in told]
    flapping = [text for text in texts if "flaps" in text]
    assert 300 + 9 * 25 <= len(flapping) <= 300 + 11 * 27
    assert sum("pod=calm/pod" in text for text in texts) == 120
    left = sum(int(number) for text in texts for number in re.findall(r"left_out=(\d+)", text))
    replaced = sum(text.startswith("lines left out namespace=flaps") for text in texts)
    # One that was replaced counts as left out; those since the last number are told of later.
    assert 12_000 - 20 * 61 <= len(flapping) - replaced + left <= 12_000


def test_errors_and_lines_about_no_object_are_always_logged_and_objects_of_the_cluster_have_a_limit() -> None:
    limit = NamespaceLines()
    assert all(limit.filter(line(0, "ns/pod", logging.ERROR)) for _ in range(1_000))
    assert all(limit.filter(line(0, "")) for _ in range(1_000))
    assert sum(limit.filter(line(0, f"rule-{number}")) for number in range(5_000)) == 301  # of the cluster
    assert all(limit.filter(logging.LogRecord("x", logging.INFO, "", 0, "text", (), None)) for _ in range(1_000))
    assert limit.filter(line(0, "ns/pod"))


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """What ``configure_logs`` sets for a process is as it was."""
    root, names = (
        logging.getLogger(),
        ("", "dra_operator", "dra_operator.app.telemetry"),
    )
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in names}
    flags = (logging.logThreads, logging.logProcesses, logging.logMultiprocessing)
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("asyncio").filters.clear()
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = flags


def secrets_in(kubeconfig: Path) -> list[str]:
    """Tokens and keys."""
    found = re.findall(r"(?:token|client-key-data): (\S+)", kubeconfig.read_text())
    assert found
    return found


async def log_of(cluster: LiveCluster, kubeconfig: Path, folder: Path, *options: str) -> str:
    """What the operator logs while a pod is placed."""
    await cluster.furnish(template=True)
    async with operator_process(kubeconfig, folder / "log", "own", *options) as operator:
        await operator.becomes_ready()
        await cluster.place("pod")
        assert await operator.stop() == 0
    return operator.text


@pytest.mark.parametrize(
    ("flag", "there", "absent"),
    [
        ("--verbosity=0", [" pod bound "], [" node asked ", " claim reserved ", " request ", "kopf."]),
        ("-v", [" pod bound ", " node asked "], [" request ", "kopf."]),
        ("-vv", [" pod bound ", " node asked ", " request method=POST ", "path=/api/v1/pods "], ["kopf."]),
    ],
)
async def test_each_verbosity_adds_what_its_help_says(
    cluster: LiveCluster, kubeconfig: Path, tmp_path: Path, flag: str, there: list[str], absent: list[str]
) -> None:
    text = await log_of(cluster, kubeconfig, tmp_path, flag)
    assert [word for word in there if word not in text] == []
    assert [word for word in absent if word in text] == []


async def test_the_requests_of_an_attempt_have_its_id_and_no_request_shows_a_secret(
    cluster: LiveCluster, kubeconfig: Path, tmp_path: Path
) -> None:
    text = await log_of(cluster, kubeconfig, tmp_path, "-vv")
    bound = next(line for line in text.splitlines() if " pod bound " in line)
    attempt = re.search(r"attempt=\S+", bound)
    assert attempt is not None
    story = [line for line in text.splitlines() if attempt[0] in line]
    assert any("path=/api/v1/namespaces/ns/pods/pod/binding status=201 " in line for line in story)
    secrets = [*secrets_in(kubeconfig), "Bearer", "uthorization", "?watch", "timeout="]
    assert [secret for secret in secrets if secret in text] == []


async def test_json_is_one_object_per_line_from_the_first_to_the_last(
    cluster: LiveCluster, kubeconfig: Path, tmp_path: Path
) -> None:
    text = await log_of(cluster, kubeconfig, tmp_path, "--log-format", "json", "-vv")
    entries = [json.loads(line) for line in text.splitlines()]
    (bound,) = (entry for entry in entries if entry["message"] == "pod bound")
    assert (bound["pod"], bound["level"]) == ("ns/pod", "info")
    # right after the start other schedulers' pods may come unseen: then one attempt allocates, and a later one binds
    attempts = {it.get("attempt") for it in entries if it["message"] in ("claim allocated", "pod bound")}
    assert bound["attempt"] in attempts
    assert {entry["message"] for entry in entries if entry.get("attempt") in attempts} >= {
        "node asked",
        "claim allocated",
        "request",
        "pod bound",
    }


def test_nothing_is_made_of_a_line_that_is_off() -> None:
    """What a field costs is spent only when the line is written."""
    logger = logging.Logger("off", logging.WARNING)
    tell(logger, logging.INFO, "it happened", field=lambda: sys.exit("made"))
