"""What the pages name exists: files behind links, pages behind the entrance, commands and their flags."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

import pytest
from dra_kubeletplugin.commands import FLAGS
from dra_operator.kubectl.cli import main as kubectl_dra
from pages import BY_NAME, PAGES, ROOT, Page
from rounds import each_of

OURS = {
    script.name: script
    for script in entry_points(group="console_scripts")
    if script.value.startswith("dra_") and not script.name.startswith("kubectl_complete-")  # that one kubectl calls
}
# named in a text without the command that has it
FOREIGN_FLAGS = {"--set", "--controllers", "--ignore-not-found", "--import-mode", "--root-dir", "--runtime-config"}
# A page names files from the root of the project, or from the packages that most pages are about.
STARTS = (
    "",
    "operator/dra_operator",
    "operator/dra_operator/allocator",
    "kubeletplugin/dra_kubeletplugin",
    "devcluster/dra_devcluster",
    "cel/dra_cel",
    "ledger/dra_ledger",
)
MADE = {".venv/", "dist/", "site/", "hello.py"}  # by commands on the pages, or by the reader
MADE |= {"examples/trace/pods.csv", "examples/trace/nodes.csv", "examples/trace/week.yaml"}  # by their scripts
MADE |= {".github/workflows/test.yaml"}  # by dra-kubelet-plugin new
MADE |= {"install.yaml", "install-with-simulated-driver.yaml", "dra.yaml"}  # by make release
each_page = each_of(PAGES, lambda page: page.name)
Path = tuple[str, ...]  # one of our commands and the sub-commands that follow it


@cache
def usage(path: Path) -> str:
    """What ``--help`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
        # The script of kubectl dra changes how a process takes Ctrl-C as soon as it is imported.
        main = kubectl_dra if path[0] == "kubectl-dra" else OURS[path[0]].load()
        main([*path[1:], "--help"])
    assert ended.value.code == 0
    return printed.getvalue()


def sub_commands(path: Path) -> list[str]:
    return re.findall(r"^ {4}([a-z][\w-]*)(?=\s)", usage(path), re.MULTILINE)


def all_flags(path: Path) -> set[str]:
    """The long flags of a command and of those below it."""
    below: Iterator[set[str]] = (all_flags((*path, name)) for name in sub_commands(path))
    return set(re.findall(r"--[a-z][a-z-]*", usage(path))).union(*below)


def our_commands(page: Page) -> Iterator[tuple[Path, list[str]]]:
    """Every call of one of our commands: the command with its sub-command, and the words that follow."""
    for line in [line.command for block in page.console() for line in block] + page.code_spans:
        words = [word.rpartition("/bin/")[2] for word in line.replace("kubectl dra ", "kubectl-dra ").split()]
        for name in OURS.keys() & set(words[:-1]):
            rest = words[words.index(name) + 1 :]
            if "--" in rest:
                del rest[rest.index("--") + 1 :]  # the command of a driver
            path: Path = (name,)
            while rest and rest[0] in sub_commands(path):
                path = (*path, rest.pop(0))
            yield path, rest


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    assert [str(target) for target in page.links if not target.exists()] == []


@cache
def file_names() -> set[str]:
    """The names of all files of the project, without their folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name.rpartition("/")[2] for name in listed if (ROOT / name).exists()}


@each_page
def test_files_in_the_text_exist(page: Page) -> None:
    named = set(page.files) - MADE
    missing = {name for name in named if "/" in name and not any((ROOT / start / name).exists() for start in STARTS)}
    missing |= {name for name in named if "/" not in name} - file_names()
    assert missing == set()


def test_the_table_of_changes_is_about_ten_rows_with_at_most_four_files() -> None:
    section = BY_NAME["CONTRIBUTING.md"].text.partition("## Where a change goes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!Change |---)(.+?) \| (.+) \|$", section, re.MULTILINE)
    assert 10 <= len(rows) <= 12
    files = {change: re.findall(r"`([\w./-]+/[\w./-]*)`", text) for change, text in rows}
    assert {change: names for change, names in files.items() if not names} == {}
    assert [change for change, names in files.items() if len(names) > 4] == []


def test_the_walk_of_a_pod_names_twenty_files_at_most() -> None:
    walk = BY_NAME["docs/design.md"].text.partition("## 2. One pod")[2].partition("\n## ")[0]
    assert 15 <= len(set(re.findall(r"`([\w/]+\.py)`", walk))) <= 20


def test_the_page_that_turns_the_check_on_has_at_most_120_lines() -> None:
    assert BY_NAME["docs/kueue.md"].text.count("\n") <= 120


def test_every_page_is_found_from_the_entrance() -> None:
    entrances = ("README.md", "docs/contents.md", "CONTRIBUTING.md", "docs/design.md", "docs/adr/README.md")
    linked = {link for name in entrances for link in BY_NAME[name].links}
    assert [page.name for page in PAGES[1:] if ROOT / page.name not in linked] == []


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    generated = {name for name in listed if name == "index.md" or name.startswith("reference/")}
    assert listed - generated == pages


@each_page
def test_commands_take_the_words_that_are_shown(page: Page) -> None:
    for path, rest in our_commands(page):
        assert len(path) > 1 or rest[0].startswith("--"), f"{path[0]} has no command {rest}"
        for flag in (word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", usage(path)), f"{' '.join(path)} has no {flag}"


@each_page
def test_flags_in_the_text_exist(page: Page) -> None:
    known = FOREIGN_FLAGS.union(*(all_flags((name,)) for name in OURS)) | {*FLAGS, "--kubelet-dir"}
    for benchmark in (ROOT / "benchmarks").glob("*.py"):
        known |= set(re.findall(r'"(--[a-z-]+)"', benchmark.read_text()))
    mentioned = {re.split(r"[= ]", span)[0] for span in page.code_spans if span.startswith("--")}
    assert mentioned - known == set()


@each_page
def test_make_knows_its_targets(page: Page) -> None:
    makefile = (ROOT / "Makefile").read_text()
    lines = [line.command for block in page.console() for line in block] + page.code_spans
    for target in (line.split()[-1] for line in lines if line.startswith("make ")):
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target
