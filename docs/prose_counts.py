"""Count turns of phrase that make a page hard to read: `python docs/prose_counts.py [COMMIT ...]`.

Each row is a search over README.md, CONTRIBUTING.md and docs/*.md. Each column is a state: the files here, or at a
commit that is named. Code blocks and generated pages are left out. A count is no fault: it says where to look.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
GENERATED: Final = {"docs/operator-settings.md", "docs/feature-gates.md"}
LONG_WORDS: Final = 48
SEARCHES: Final = {
    'pods that "end"': r"pods? .{0,30}\bends?\b",
    "what is, what it, what the, what comes": r"\bwhat (is|it|the|comes)\b",
    "those that, those of": r"\bthose (that|of)\b",
    "a fact hung on: , which": r", which",
    "the adverbial first": r"^(Of|Where|On|By|With) ",
    "idioms that are none": (
        r"in the mean|in vain|in thought|to and fro|is told of|for good|so many|goes by|whatever|"
        r"as far as|that very"
    ),
    "colon and semicolon in one sentence": r":[^.\n]*;[^.\n]*\.",
    "commit hashes": r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,8}\b",
    "machine loads": r"load of",
    "paths of tests": r"tests/",
    "names of Python files": r"\.py\b",
    "limits at the end": r"at (most|least)[.,;)]",
}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="a column for each, beside the files here")
    commits = parser.parse_args().commits
    try:
        states = {"here": dict(here()), **{commit: dict(of_commit(commit)) for commit in commits}}
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip())
    print(f"{'':42}" + "".join(f"{name:>12}" for name in states))
    for title, pattern in SEARCHES.items():
        print(f"{title:42}" + "".join(f"{count(pattern, pages):>12,}" for pages in states.values()))
    print(
        f"{f'sentences over {LONG_WORDS} words':42}" + "".join(f"{long_sentences(it):>12,}" for it in states.values())
    )
    print(f"{'lines':42}" + "".join(f"{sum(t.count(chr(10)) for t in it.values()):>12,}" for it in states.values()))
    return 0


def is_page(name: str) -> bool:
    """Return whether a file is one for readers."""
    is_in_docs = bool(re.fullmatch(r"docs/[^/]+\.md", name)) and name not in GENERATED
    return is_in_docs or name in ("README.md", "CONTRIBUTING.md")


def here() -> Iterator[tuple[str, str]]:
    """The pages as they are."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        if is_page(name := str(path.relative_to(ROOT))):
            yield name, path.read_text()


def of_commit(commit: str) -> Iterator[tuple[str, str]]:
    """The pages of a commit."""
    names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    yield from ((name, git("show", f"{commit}:{name}")) for name in names if is_page(name))


def git(*words: str) -> str:
    """What git prints. Raises CalledProcessError."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def count(pattern: str, pages: dict[str, str]) -> int:
    """How often a pattern stands in the text of pages."""
    return sum(len(re.findall(pattern, text_of(text), re.MULTILINE)) for text in pages.values())


def long_sentences(pages: dict[str, str]) -> int:
    """How many sentences have more words than a reader holds."""
    sentences = (s for text in pages.values() for s in re.split(r"[.:?!](?=\s)|\n\n|\n[-*|]|\|", text_of(text)))
    return sum(len(sentence.split()) > LONG_WORDS for sentence in sentences)


def text_of(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
