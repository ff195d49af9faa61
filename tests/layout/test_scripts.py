"""Every script answers ``--help`` with its usage and an example, refuses what it does not know, and changes nothing.

The scripts are found, not listed: Python files with an ``if __name__ == "__main__"``, and files that begin with ``#!``.
Those in Python run in one process. It raises an error as soon as one of them opens a file to write, or starts, makes,
removes or connects to anything.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("proto", "kube", "cel", "ledger", "operator", "simulator", "kubeletplugin", "devcluster")
SUPPORT: Final = "tests/support"
UNKNOWN: Final = "--no-such-flag"
INNER: Final = {
    "devcluster/dra_devcluster/agent/processes/sandbox_entry.py": "the node agent alone starts it, inside a sandbox",
    "devcluster/dra_devcluster/processes.py": "the development cluster alone starts it, and talks to it by its input",
    "operator/dra_operator/kubectl/completion.py": "kubectl hands it words to complete, and --help may be one of them",
    "supply/archive_main.py": "the start of an archive: kubectl dra answers",
}
"""No person starts these; why."""
PLAY: Final = r"""
import contextlib, io, json, os, runpy, sys, traceback, warnings

class Touched(BaseException):
    pass

def refuse(event, arguments):
    if not watched:
        return
    if event == "open":
        path, _, flags = arguments
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or str(path).startswith("/dev/"):
            return
    elif event not in CHANGES:
        return
    watched.clear()
    raise Touched(f"{event} {arguments}")

CHANGES = {
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.exec", "os.fork", "os.posix_spawn", "os.system",
    "subprocess.Popen", "socket.connect", "socket.getaddrinfo", "shutil.rmtree", "tempfile.mkdtemp",
}
watched = []
sys.addaudithook(refuse)
sys.dont_write_bytecode = True
path = list(sys.path)
for line in sys.stdin:
    name, is_module, words = json.loads(line)
    sys.argv = [name, *words]
    sys.path[:] = path if is_module else [name if os.path.isdir(name) else os.path.dirname(name), *path]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        watched[:] = [True]
        try:
            run = runpy.run_module if is_module else runpy.run_path
            run(name, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        except BaseException:
            traceback.print_exc()
            code = -1
        watched.clear()
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


class Said(NamedTuple):
    """What a script said, and its exit code: -1 if it raised an error or was about to change something."""

    code: int
    out: str
    err: str


def tracked() -> list[str]:
    """All files of the repository, those included that are not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


def is_script(text: str) -> bool:
    """Return whether a module does something when it is started."""
    return "__main__" in text and any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in ast.parse(text).body
    )


SCRIPTS: Final = [name for name in tracked() if name.endswith(".py") and is_script((ROOT / name).read_text())]
SHELL: Final = [
    name for name in tracked() if not name.endswith((".py", ".txt")) and (ROOT / name).read_bytes()[:2] == b"#!"
]


def started(name: str) -> tuple[str, bool]:
    """How a person starts a script: its path, or the name of a module and True."""
    for room in (*ROOMS, SUPPORT):
        path = Path(name)
        if name.startswith(f"{room}/") and len(path.parts) > len(Path(room).parts) + 1:
            parts = path.relative_to(room).with_suffix("").parts
            return ".".join(part for part in parts if part != "__main__"), True
    return str(ROOT / (name.removesuffix("/__main__.py"))), False


def said(names: list[str], *words: str, folder: Path) -> dict[str, list[Said]]:
    """What each script says to each of these words, one after the other."""
    lines = [json.dumps([*started(name), [word]]) for name in names for word in words]
    paths = [ROOT, ROOT / SUPPORT, ROOT / "benchmarks", *(ROOT / room for room in ROOMS)]
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "PYTHONHASHSEED": "0", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLAY],
        input="\n".join(lines), cwd=folder, env=environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    answers = [Said(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines), f"{names[len(answers) // len(words)]}: {done.stderr}"
    return {name: answers[number * len(words) :][: len(words)] for number, name in enumerate(names)}


def has_example(name: str, text: str) -> bool:
    """Return whether the help has a command below its usage that a person may type."""
    path = Path(name)
    title = path.parent.name if path.stem == "__main__" else path.stem
    usage, _, rest = text.partition("\n\n")
    command = usage.removeprefix("usage: ").partition(" [")[0]
    return re.search(rf"python .*\b{re.escape(title)}\b|\b{re.escape(command)} [^ ]", rest) is not None


PEOPLE: Final = [name for name in SCRIPTS if name not in INNER]


def test_every_python_script_answers_help_refuses_an_unknown_flag_and_changes_nothing(tmp_path: Path) -> None:
    """In one process: the second start of a script finds what it imports."""
    answers = said(PEOPLE, "--help", UNKNOWN, folder=tmp_path)
    helps = {name: shown for name, (shown, _) in answers.items()}
    wrong = {name: (it.code, it.err[-300:]) for name, it in helps.items() if it.code != 0 or "usage: " not in it.out}
    assert wrong == {}
    assert [name for name, it in helps.items() if not has_example(name, it.out)] == []
    refusals = {name: refused for name, (_, refused) in answers.items()}
    taken = {name: (it.code, it.out[:80], it.err[-300:]) for name, it in refusals.items() if it.code != 2}
    assert taken == {}
    assert list(tmp_path.iterdir()) == []


def test_the_scripts_that_nobody_starts_exist() -> None:
    assert INNER.keys() - set(SCRIPTS) == set()


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_script_answers_help_and_refuses_an_unknown_flag(name: str, tmp_path: Path) -> None:
    commands = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert re.match(r"\. .*/usage\" \d+ \d+ \"\$@\"$", commands[1]), "it would run before it reads its arguments"
    path = {"HOME": str(tmp_path), "PATH": os.defpath}
    shown = subprocess.run([ROOT / name, "--help"], cwd=tmp_path, env=path, capture_output=True, text=True, timeout=20)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(rf"^ +{re.escape(name)}\b", shown.stdout, re.M), shown.stdout
    refused = subprocess.run([ROOT / name, UNKNOWN], cwd=tmp_path, env=path, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 2
    assert UNKNOWN in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "act", ["open('x', 'w')", "import os; os.mkdir('x')", "import subprocess; subprocess.run(['true'])"]
)
def test_a_script_that_ignores_help_is_stopped_before_it_changes_something(act: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(act)
    (answer,) = said([str(script)], "--help", folder=tmp_path)[str(script)]
    assert (answer.code, answer.out) == (-1, "")
    assert "Touched" in answer.err
    assert list(tmp_path.iterdir()) == [script]
