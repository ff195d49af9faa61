"""The page of feature gates is made from the table."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_feature_gates_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "gates_page.py"))["page"]()
    assert (DOCS / "feature-gates.md").read_text() == made, "run make settings"
