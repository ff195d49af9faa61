"""The completion scripts of docs/completion.md complete commands and flags."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pages import BY_NAME

CALLS = [
    line.command.partition(" >")[0].split()
    for block in BY_NAME["docs/completion.md"].console()
    for line in block
    if line.command.startswith("shtab")
]
KNOWN = {
    "dra_operator.cli.parser": "--search-budget",
    "dra_devcluster.cli.parser": "--snapshot",
    "dra_kubeletplugin.cli.parser": "--node-name",
    "dra_driver_test.cli.parser": "--bad-parameters",
    "dra_ledger.cli.parser": "--limit",
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[-1])
def test_a_script_knows_the_flags_of_the_command(call: list[str]) -> None:
    script = subprocess.run([sys.executable, "-m", *call], check=True, capture_output=True, text=True).stdout
    assert re.search(rf"(?<![\w-]){KNOWN[call[-1]]}(?![\w-])", script)
    subprocess.run(["bash", "-n"], input=script, check=True, text=True)


def test_the_page_shows_every_command() -> None:
    assert {call[-1] for call in CALLS} == set(KNOWN)


def test_the_script_of_the_operator_knows_the_flags_of_all_its_commands() -> None:
    call = ["shtab", "--shell", "bash", "dra_operator.cli.parser"]
    script = subprocess.run([sys.executable, "-m", *call], check=True, capture_output=True, text=True).stdout
    for command, flag in (("run", "--no-leader-elect"), ("cel", "--expression"), ("simulate", "--sequential")):
        assert re.search(rf"_dra_operator_{command}_option_strings=\(.*{flag}(?![\w-])", script), command
