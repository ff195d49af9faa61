"""The help of every command appears at once: it loads nothing that talks to a server.

Start-up is not timed here: the time depends on the machine, and the modules that are loaded do not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

PROJECT: Final = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
SCRIPTS: Final = {name: target.partition(":")[0] for name, target in PROJECT["project"]["scripts"].items()}
COMPLETION: Final = SCRIPTS["kubectl_complete-dra"]
COMMANDS: Final = {
    name: module.replace("kubectl.start", "kubectl.cli")  # which it loads, with another handler for Ctrl-C
    for name, module in SCRIPTS.items()
    if module != COMPLETION
}
HEAVY: Final = {"aiohttp", "grpc", "kopf", "kubernetes", "opentelemetry", "prometheus_client", "requests"}
HELP: Final = """
import argparse, contextlib, importlib, io, json, sys

module = importlib.import_module(sys.argv[1])
kinds = [action for action in module.parser()._actions if isinstance(action, argparse._SubParsersAction)]
loaded = {}
for words in [[], *([name] for kind in kinds for name in kind.choices)]:
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        module.main([*words, "--help"])
    assert "usage:" in text.getvalue(), words
    loaded[" ".join(words)] = set(sys.modules)
print(json.dumps({words: [name for name in names if "." not in name] for words, names in loaded.items()}))
"""


def heavy_after(code: str, *words: str) -> dict[str, set[str]]:
    """The heavy packages that were loaded after each help, by the words before ``--help``."""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {words: HEAVY.intersection(names) for words, names in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_and_of_its_sub_commands_loads_nothing_that_talks_to_a_server(command: str) -> None:
    heavy = heavy_after(HELP, COMMANDS[command])
    assert {words: names for words, names in heavy.items() if names} == {}
    assert "" in heavy


def test_a_completed_word_that_is_no_name_loads_nothing_that_talks_to_a_server() -> None:
    code = "import json, sys; from {0} import main; main(['wh']); print(json.dumps({{'': list(sys.modules)}}))"
    assert heavy_after(code.format(COMPLETION)) == {"": set()}


def test_what_the_help_must_not_load_is_seen() -> None:
    assert heavy_after("import json, sys, dra_kube; print(json.dumps({'': list(sys.modules)}))") == {"": {"aiohttp"}}


ANSWER: Final = """
import contextlib, io, json, sys

from dra_operator.kubectl.cli import main

with contextlib.redirect_stdout(io.StringIO()):
    assert main([*sys.argv[2:], "--from", sys.argv[1]]) == 0
print(json.dumps(list(sys.modules)))
"""
DECIDING: Final = ("allocator", "cache", "controllers", "eviction", "scheduling", "sources.kinds")


@pytest.mark.parametrize("words", ["top", "top drivers", "devices", "claims -A", "pools"])
def test_a_table_of_what_there_is_loads_nothing_that_decides(words: str) -> None:
    """It takes twice as long with it: scheduler and cache are half of the processor time of `kubectl dra top`."""
    cluster = Path(__file__).parents[1] / "kubectl/cluster.yaml"
    command = [sys.executable, "-c", ANSWER, str(cluster), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert sorted(loaded & {f"dra_operator.{name}" for name in DECIDING}) == []
    assert sorted(loaded & HEAVY) == []
