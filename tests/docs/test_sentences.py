"""The list of what people read is made from the sources."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "sentences.py"))
SOURCE = '''
"""A docstring is for those who read code."""

LIMIT = 5
"""So is what describes a name."""


def run(logger, parser, pod, names):
    """And this."""
    logger.warning("pod %s waits", pod.key)
    parser.add_argument("--name", help="port", metavar="N")
    raise ValueError(f"{pod.metadata.name}: none of {', '.join(names)} fits " "the node")
'''


def test_the_list_names_each_file_with_its_texts() -> None:
    page = SCRIPT["page"]()
    assert "======== operator/dra_operator/scheduling/rules" in page
    assert page.count("\n  - ") > 1000


def test_a_sentence_is_found_wherever_it_is_written() -> None:
    found = ["pod %s waits", "port", "{name}: none of {names} fits the node"]
    assert list(SCRIPT["texts"](ast.parse(SOURCE))) == found
