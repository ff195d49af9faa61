"""No text that somebody else wrote is an option, or more, in a command that a person is told to run."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import pytest
import yaml
from command import ROOT, kubectl_for
from dra_api.command_line import is_name, kubectl, shell, with_command
from dra_api.console import printable
from dra_api.leases import Lease
from dra_devcluster.apiserver import DevApiServer
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.commands import COMMANDS
from hypothesis import given
from hypothesis import strategies as st

HERE = Path(__file__).parent
MARK = "EVIL"
HOSTILE = [
    f"--all-{MARK}",
    f"-{MARK}",
    f"a --all {MARK}",
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    f"'; touch {MARK} #",
    f'"{MARK}',
    f"a\n  $ kubectl delete namespace {MARK}",
    f"\x1b[2J\x1b]0;{MARK}\x07",
    f"\u202e{MARK}",
    f"{MARK}/../x",
    f"*{MARK}?",
]
OPTIONS = re.compile(
    r"-n|-p|-A|-o|--subresource=status|--type=json|--overwrite|--clusterrole=dra-viewer|--user=USER"
    r"|--selector=.*|--field-selector=spec\.nodeName=[a-z0-9.-]+"
)
"""Those of the commands that are printed."""
LABEL_OR_TAINT = re.compile(r"[\w./-]+=[\w.-]*|dra\.kopf\.dev/scheduler-|dra\.kopf\.dev/scheduler=[\w.-]+:NoSchedule")
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20), st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True))


@given(st.lists(texts, min_size=1, max_size=3), texts, st.dictionaries(texts, texts, max_size=2), texts)
def test_a_command_is_split_into_the_words_that_it_was_made_of(
    names: list[str], namespace: str, labels: dict[str, str], context: str
) -> None:
    given = [("--context", context)]
    command = kubectl("label", "node", "--overwrite", names=names, namespace=namespace, labels=labels, options=given)
    if not command:
        return
    place = ["-n", namespace] if namespace else []
    pairs = [f"{key}={value}" for key, value in labels.items()]
    assert shlex.split(command) == [
        "kubectl",
        "label",
        "node",
        "--overwrite",
        f"--context={context}",
        *place,
        "--",
        *names,
        *pairs,
    ]
    assert all(map(is_name, [*names, *place[1:]]))
    assert printable(command) == command, "what is escaped on its way to a terminal is another command"


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_name_is_in_no_command(text: str) -> None:
    assert kubectl("delete", "pod", names=["web", text]) == ""
    assert kubectl("delete", "pod", names=["web"], namespace=text) == ""
    assert kubectl("label", "node", names=["node"], labels={"zone": text}) == ""
    assert kubectl("label", "node", names=["node"], labels={text: "a"}) == ""
    assert kubectl("get", "pods", f"--field-selector=spec.nodeName={text}", of_names=[text]) == ""
    assert with_command("uncordon the node", kubectl("uncordon", names=[text])) == "uncordon the node"


@given(st.lists(texts, min_size=1))
def test_other_words_are_quoted(words: list[str]) -> None:
    line = shell(*words)
    assert not line or (shlex.split(line) == words and printable(line) == line)


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """The value with each text in it changed, but for what tells kinds and times."""
    if isinstance(value, dict):
        fixed = {"apiVersion", "kind", "phase", "creationTimestamp", "deletionTimestamp", "type", "status", "effect",
                 "operator", "allocationMode", "expression", "resource", "timeAdded", "lastTransitionTime"}  # fmt: skip
        return {
            key: each if key in fixed and isinstance(each, str) else changed(each, change)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [changed(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


KINDS = {"pod": "Pod", "claim": "ResourceClaim"}
Json = dict[str, Any]


def read(name: str) -> list[Json]:
    documents = [each for each in yaml.safe_load_all((HERE / name).read_text()) if each]
    return [obj for each in documents for obj in (each.get("items") or [each])]


CLUSTERS = {name: read(f"{name}.yaml") for name in ("cluster", "broken")}
"""Devices in use and pods that wait, and what doctor finds."""


def names_in(objects: list[Json]) -> set[str]:
    """The names of the objects and of consumers of claims, without those that the commands have to find."""
    names = {obj["metadata"]["name"] for obj in objects if obj["kind"] != Lease.__name__}
    consumers = (one for obj in objects for one in (obj.get("status") or {}).get("reservedFor") or ())
    return names | {one["name"] for one in consumers}


def snapshot(folder: Path, objects: list[Json]) -> str:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(path)


def answers(
    source: str, objects: list[Json], rename: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> Iterator[str]:
    """The lines that all commands print about the file."""
    node, driver = next(obj["metadata"]["name"] for obj in objects if obj["kind"] == "Node"), "gpu.example.com"
    found = [(word, obj["metadata"]) for obj in objects for word, kind in KINDS.items() if obj["kind"] == kind]
    asked: list[tuple[str, list[str], list[str]]] = [
        *((name, [], []) for name in ("top", "devices", "claims", "pools", "free", "doctor")),
        *((name, ["-o", "wide"], []) for name in ("devices", "claims", "pools")),
        *((name, [], [rename(node)]) for name in ("who", "topology", "drain")),
        ("why", ["-A"], []),
        *(("why", ["-n", meta["namespace"]], [word, rename(meta["name"])]) for word, meta in found),
        ("taint", ["--dry-run"], [driver]),
        ("defrag", ["--for", "mix"], []),
        ("territory", [], []),
    ]
    assert {name for name, *_ in asked} >= COMMANDS.keys() - {"lint", "fit", "ui", "snapshot"}
    for name, options, others in asked:
        main([name, "--from", source, *options, *(["--", *others] if others else [])])
        captured = capsys.readouterr()
        yield from (captured.out + captured.err).split("\n")


def commands_in(line: str) -> Iterator[list[str]]:
    """A line of its own, or what stands in parentheses."""
    if line.startswith(("  $ ", "kubectl taint ")):
        words = shlex.split(line.removeprefix("  $ "))
        while "&&" in words:
            end = words.index("&&")
            yield words[:end]
            words = words[end + 1 :]
        yield words
    for inside in re.findall(r"\((kubectl [^)]*)\)", line):
        yield shlex.split(inside)


def check(words: list[str]) -> None:
    """Only what this project wrote stands before ``--``, and only names or labels behind it."""
    options, _, data = (words, "", []) if "--" not in words else split(words)
    for place, word in enumerate(options):
        if options[place - 1] == "-p":
            json.loads(word)
            continue
        assert not word.startswith("-") or OPTIONS.fullmatch(word), words
        assert MARK not in word, words
    assert all(is_name(word) or LABEL_OR_TAINT.fullmatch(word) for word in data), words


def split(words: list[str]) -> tuple[list[str], str, list[str]]:
    place = words.index("--")
    return words[:place], "--", words[place + 1 :]


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("text", HOSTILE)
def test_no_command_has_a_consumer_that_no_pod_can_be(
    text: str, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An API server admits any text as the name of a consumer in the status of a claim."""
    objects: list[Json] = json.loads(json.dumps(CLUSTERS[cluster]))
    for obj in objects:
        if obj["kind"] == "ResourceClaim":
            consumers = obj.setdefault("status", {}).setdefault("reservedFor", [])
            consumers.append({"resource": "pods", "name": text, "uid": text})
    lines = list(answers(snapshot(tmp_path, objects), objects, str, capsys))
    for words in (words for line in lines for words in commands_in(line)):
        check(words)
    assert all(map(str.isprintable, lines))
    assert any(printable(text) in line for line in lines), "shown as data"


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("text", HOSTILE)
def test_no_command_has_a_name_that_is_none(
    text: str, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file that another one sent: everything in it may be called anything."""
    names = names_in(CLUSTERS[cluster])

    def rename(word: str) -> str:
        return f"{text}-{word}" if word in names else word

    objects = changed(CLUSTERS[cluster], rename)
    for line in answers(snapshot(tmp_path, objects), CLUSTERS[cluster], rename, capsys):
        assert line.isprintable()
        for words in commands_in(line):
            check(words)


async def test_kubectl_takes_names_behind_the_options(tmp_path: Path) -> None:
    """Each command of the recorded answers, tried without an effect: kubectl looks for the objects that they name."""
    recorded = "\n".join(file.read_text() for file in sorted((HERE / "answers").glob("*.txt")))
    found = {tuple(words) for line in recorded.split("\n") for words in commands_in(line) if "--" in words}
    assert {words[1] for words in found} == {"patch", "delete", "uncordon", "label", "taint", "get"}
    async with DevApiServer() as server:
        run = kubectl_for(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path)
        for words in sorted(found):
            harmless = () if words[1] == "get" else ("--dry-run=server",)
            said = await run(words[1], *harmless, *words[2:], code=None)
            assert not said or "not found" in said, words  # nothing, if no node has the labels


PROGRAMS = re.compile(r"\b(kubectl (?!dra:)[a-z]|sudo |export \w+=|pytest |python3? |pip install |--from )")
CONCERNED = re.compile(r"kubectl|sudo|export|pytest|python|pip|--from|shlex")
"""A file without any of these words has nothing that is looked for, and is not parsed."""


def test_commands_with_other_texts_in_them_are_built_in_one_place() -> None:
    """No text with a command in it is put together by hand."""
    packages = (
        "operator",
        "simulator",
        "ledger",
        "kubeletplugin",
        "devcluster",
        "kube",
        "cel",
        "proto/dra_api",
        "proto/dra_cdi",
    )
    wrong = []
    for file in (file for package in packages for file in (ROOT / package).rglob("*.py")):
        if file.name != "command_line.py" and CONCERNED.search(source := file.read_text()):
            for node in ast.walk(ast.parse(source)):
                if (isinstance(node, ast.JoinedStr) and by_hand(node)) or has_data_among_options(node):
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}")
                elif (
                    isinstance(node, ast.Attribute)
                    and node.attr in ("join", "quote")
                    and ast.unparse(node.value) == "shlex"
                ):
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} quotes by itself")
    assert wrong == []


def has_data_among_options(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether ``kubectl`` is called with a word that may be anything, instead of a name behind the options."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "kubectl"):
        return False
    words = [each for arg in node.args for each in (arg.value.elts if starred(arg) else [arg])]  # type: ignore[attr-defined]
    values = {place + 1 for place, word in enumerate(words) if isinstance(word, ast.Constant) and word.value == "-p"}
    return not all(isinstance(word, ast.Constant) or place in values or is_option(word)
                   for place, word in enumerate(words))  # fmt: skip


def starred(arg: ast.expr) -> bool:
    return isinstance(arg, ast.Starred) and isinstance(arg.value, ast.Tuple)


def is_option(word: ast.expr) -> bool:
    """``f"--option={value}"``, or none of several such."""
    if isinstance(word, ast.Starred) and isinstance(word.value, ast.IfExp) and isinstance(word.value.body, ast.List):
        return all(map(is_option, word.value.body.elts))
    first = word.values[0] if isinstance(word, ast.JoinedStr) else None
    return isinstance(first, ast.Constant) and re.match(r"--[a-z-]+=", str(first.value)) is not None


def by_hand(text: ast.JoinedStr) -> bool:
    """Whether something stands behind the name of a program, before the sentence ends."""
    before = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            before += str(part.value)
        elif (found := PROGRAMS.search(before)) and not re.search(r"[);:\n]", before[found.start() :]):
            return True
    return False
