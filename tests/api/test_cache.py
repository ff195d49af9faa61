"""A cache bounded by bytes: whatever is put in, it holds no more than its limit."""

from __future__ import annotations

from dra_api.cache import ENTRY_BYTES, SHORT_CHARACTERS, Cache, remember_short
from hypothesis import given
from hypothesis import strategies as st


def texts(limit: int, largest: int | None = None) -> Cache[str, str]:
    return Cache(limit, lambda key, value: len(value), largest=largest)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3000), st.booleans()), max_size=60))
def test_it_never_holds_more_than_its_limit_and_knows_what_it_holds(steps: list[tuple[str, int, bool]]) -> None:
    cache, held = texts(4000, 2500), dict[str, str]()
    for key, size, remove in steps:
        if remove:
            value = cache.pop(key)
            assert value is None or value == held[key]
        else:
            held[key] = "x" * size
            assert cache.put(key, held[key]) == held[key]
        kept = {key: value for key in "abcdef" if (value := cache.get(key)) is not None}
        assert cache.used == sum(ENTRY_BYTES + len(value) for value in kept.values()) <= 4000
        assert all(len(value) + ENTRY_BYTES <= 2500 and value == held[key] for key, value in kept.items())
        assert len(cache) == len(kept)


def test_what_was_used_least_recently_goes_first() -> None:
    cache = texts(3 * ENTRY_BYTES, ENTRY_BYTES)
    for key in "abc":
        cache.put(key, "")
    cache.get("a")
    cache.put("d", "")
    assert [cache.get(key) for key in "abcd"] == ["", None, "", ""]


def test_an_entry_that_is_too_large_displaces_nothing_but_its_own_key() -> None:
    cache = texts(8 * ENTRY_BYTES + 800)
    cache.put("a", "")
    cache.put("b", "")
    cache.put("a", "x" * 5000)
    assert (cache.get("a"), cache.get("b")) == (None, "")
    cache.clear()
    assert (len(cache), cache.used) == (0, 0)


def test_only_short_texts_are_remembered() -> None:
    calls: list[str] = []

    @remember_short(2)
    def parse(text: str) -> int:
        calls.append(text)
        return len(text)

    short, long = "x" * SHORT_CHARACTERS, "y" * (SHORT_CHARACTERS + 1)
    for text in ("a", "a", short, short, long, long):
        assert parse(text) == len(text)
    assert [len(text) for text in calls] == [1, len(short), len(long), len(long)]
