"""docs/simulate.md lists the answers of nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from dra_operator.scheduling import NodeStatus

PAGE = Path(__file__).parents[2] / "docs/simulate.md"


def test_the_page_lists_every_answer_of_a_node() -> None:
    table = PAGE.read_text().partition("| `answer` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == [answer.kind for answer in get_args(NodeStatus)]
