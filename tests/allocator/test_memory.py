"""What is remembered is bounded, and forgetting changes no answer."""

from __future__ import annotations

import pytest
from allocator_lab import claim, device, lab, pool, request
from dra_api.codec import convert
from dra_api.resource import ResourceSlice
from dra_operator.allocator.basics.journal import Journal
from dra_operator.allocator.basics.memo import Memo
from dra_operator.allocator.nodes.node_index import NodeIndex
from dra_operator.allocator.published.interning import Interner


def test_a_journal_forgets_the_oldest_changes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_LIMIT", 4)
    journal: Journal[str] = Journal()
    for key in "abcde":
        journal.add(key)
    assert journal.revision == 5
    assert journal.since(1) is None
    assert journal.since(2) == {"c", "d", "e"}
    assert journal.since(5) == set()


def test_a_memo_forgets_what_it_has_known_longest() -> None:
    memo: Memo[str, int] = Memo(2)
    for number, key in enumerate("abc"):
        assert memo.put(key, number) == number
    assert [memo.get(key) for key in "abc"] == [None, 1, 2]


def test_parts_of_slices_are_shared_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def capacity(text: str) -> object:
        (raw,) = pool(device("a", capacity={"memory": text}))
        (made,) = interner.slice(convert(ResourceSlice, raw)).spec.devices or ()
        return made.capacity

    monkeypatch.setattr(Interner, "_LIMIT", 1)
    interner = Interner()
    first = capacity("1Gi")
    assert capacity("1Gi") is first
    capacity("2Gi")
    assert capacity("1Gi") == first, "the limit is passed"
    assert capacity("1Gi") is not first


def test_an_index_that_forgets_queries_still_answers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeIndex, "_KEPT", 1)
    wanted = [claim(request("r", f'device.attributes["drv"].model == "{model}"'), name=model) for model in "ABC"]
    made = lab(pool(*(device(f"d{model}", model=model) for model in "AB")), wanted)
    for _ in range(2):
        found = [list(made.allocator.candidates([one], made.usage)) for one in made.claims]
        assert found == [["n1"], ["n1"], []]
