"""The catalogue of event reasons in docs/how-it-works.md is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from dra_operator.kube import EventReason

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-it-works.md"


def test_the_page_lists_every_event_reason_with_type_and_meaning() -> None:
    table = PAGE.read_text().partition("| Event | Type | Meaning |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [re.fullmatch(r"\| `(\w+)` \| (\w+) \| (.*) \|", line) for line in table.splitlines()]
    listed = [row.groups() for row in rows if row is not None]
    assert listed == [(reason.reason, reason.kind, reason.meaning) for reason in EventReason]
