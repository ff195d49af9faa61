"""The documents of a file, and its items one after the other: a dump of a cluster may have gigabytes.

As values, a file takes up to 13 times as many bytes as its text. So only the fields at the top of a JSON document are
decoded at once, and each item of its list when its turn comes. YAML in the form of ``kubectl get -o yaml`` is cut at
its lines: the items of one list, each from a dash in the first column on. Other YAML is composed at once, and has to
be short.

An item keeps its text, a view of the file, so that it can be read again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml
from dra_api import yaml_text

JSON = dict[str, Any]
Text = msgspec.Raw | memoryview
"""JSON, or YAML of a list with one item."""
_COMPOSED_BYTES: Final = 4 << 20
"""Length up to which YAML is always composed at once."""
LONGEST_YAML_BYTES: Final = 64 << 20
"""Length of YAML in another form than kubectl's: it takes a minute to read, and nearly 1 GB of memory."""
_LIST: Final = re.compile(rb"^items:[ \t]*\r?\n(?=- )", re.MULTILINE)
_ITEM: Final = re.compile(rb"^(?=- )", re.MULTILINE)
_END: Final = re.compile(rb"^(?![- \t\r\n#])", re.MULTILINE)
_LINKED: Final = re.compile(rb"(?:: |- |^)[&*]\w|^(?:---|\.\.\.)", re.MULTILINE)
"""An alias means a value of another item; a second document may follow."""
_GAP: Final = re.compile(r"[ \t\r\n]*")
"""Between two documents of JSON."""


STDIN: Final = "-"


class BadInput(Exception):
    """A file cannot be read, or does not hold what it should; the message names file, document, object and field."""


def read_text(path: str) -> str:
    """The text of a file, or of standard input. Raises BadInput."""
    return sys.stdin.read() if path == STDIN else as_text(path, read_bytes(path))


def read_bytes(path: str) -> bytes:
    """The bytes of a file. Raises BadInput."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def as_text(path: str, data: bytes) -> str:
    """The text of a file with these bytes. Raises BadInput."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not text in UTF-8: {error.reason} at byte {error.start}") from error


def documents(text: str) -> list[Any]:
    """The documents of a file, empty ones as None. Raises ValueError, which names the fault and its place."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [msgspec.json.decode(text)]
        except (msgspec.DecodeError, RecursionError) as error:
            return _json_stream(text) or _flow_style(text, error)
    return _yaml(text)


def _json_stream(text: str) -> list[Any]:
    """Return documents that stand one behind the other, as ``jq -c`` writes them; none for another form."""
    decoder, place = json.JSONDecoder(), 0
    found: list[Any] = []
    try:
        while rest := _GAP.match(text, place):
            if (place := rest.end()) == len(text):
                return found
            value, place = decoder.raw_decode(text, place)
            found.append(value)
    except (ValueError, RecursionError) as error:
        if len(found) > 1:  # YAML has a line between its documents
            raise ValueError(f"not JSON: document {len(found) + 1}: {error or type(error).__name__}") from error
    return []


def _flow_style(text: str, error: Exception) -> list[Any]:
    try:
        return _yaml(text)
    except ValueError as other:
        raise ValueError(f"not JSON: {error or type(error).__name__}; {other}") from other


def _yaml(text: str) -> list[Any]:
    try:
        return yaml_text.load_all(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not YAML: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    """What is wrong, and where it was noticed."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        what = ", ".join(filter(None, (error.context, error.problem)))
        return f"{what}, at line {mark.line + 1}, column {mark.column + 1}"
    return str(error) or type(error).__name__


class Part(NamedTuple):
    """A document without its items, or one of its items with its text."""

    value: Any
    text: Text | None = None


def parts(data: bytes) -> Iterator[Part] | None:
    """Yield the document of a file, then its items. Return None if the file has to be read at once."""
    start = data[:100].lstrip()[:1]
    if start in (b"{", b"["):
        return _of_json(data, is_list=start == b"[")
    return _of_yaml(data) if len(data) > _COMPOSED_BYTES else None


def again(text: Text) -> Any:
    """Return the value of an item. Raises ValueError."""
    if isinstance(text, msgspec.Raw):
        return msgspec.json.decode(text)
    try:
        [found] = yaml_text.load(bytes(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return found


def _of_json(data: bytes, *, is_list: bool) -> Iterator[Part] | None:
    try:
        if is_list:
            return _decoded([], msgspec.json.decode(data, type=list[msgspec.Raw]))
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kind = again(fields["kind"]) if "kind" in fields else "List"
        listed = fields.get("items") if isinstance(kind, str) and kind.endswith("List") else None
        if listed is None or memoryview(listed)[0] != ord("["):
            return iter([Part(msgspec.json.decode(data))])
        items = msgspec.json.decode(listed, type=list[msgspec.Raw])
        return _decoded({name: again(it) for name, it in fields.items() if name != "items"} | {"items": []}, items)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # YAML in the form of JSON, or an error that the reader of the whole words


def _decoded(top: Any, items: list[msgspec.Raw]) -> Iterator[Part]:
    yield Part(top)
    for text in items:
        yield Part(again(text), text=text)


def _of_yaml(data: bytes) -> Iterator[Part] | None:
    found = list(_LIST.finditer(data))
    if len(found) != 1 or _LINKED.search(data, pos=4):
        return None
    begin = found[0].end()
    last = _END.search(data, begin)
    end = last.start() if last is not None else len(data)
    starts = [it.start() for it in _ITEM.finditer(data, begin, end)]
    try:
        top = yaml_text.load(data[: found[0].start()] + data[end:])
    except yaml.YAMLError:
        return None
    return _composed(top, data, [*starts, end]) if isinstance(top, dict) else None


def _composed(top: JSON, data: bytes, places: list[int]) -> Iterator[Part]:
    yield Part(top | {"items": []})
    view = memoryview(data)
    for start, end in pairwise(places):
        text = view[start:end]
        yield Part(again(text), text=text)
