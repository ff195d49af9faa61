"""Templates of ``-o jsonpath=`` and the paths of ``custom-columns`` and ``--sort-by``, in kubectl's dialect.

A template is text with actions in braces: a path, a quoted text, or ``range PATH`` with its ``end``. A path has fields
(``.name``, ``['na.me']``), indexes, slices and unions (``[0]``, ``[1:-1]``, ``[0,2]``), ``*``, ``..`` for all levels
below, and filters (``[?(@.state=="free")]``). A name that does not exist gives nothing, as in ``kubectl get``. No
Python library knows the templates; client-go's own table of cases is the test
(k8s.io/client-go/util/jsonpath/jsonpath_test.go).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

_NAME: Final = re.compile(r"(?:\\.|[^\s.\[\]{}()<>=!,'\"@$|\\])+")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?![\w.])")
_OPERATOR: Final = re.compile(r"==|!=|<=|>=|<|>")
_QUOTED: Final = re.compile(r"'((?:\\.|[^'\\])*)'|\"((?:\\.|[^\"\\])*)\"", re.DOTALL)
_INDEX: Final = re.compile(r"\s*(-?\d+)\s*")
_SLICE: Final = re.compile(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


class TemplateError(Exception):
    """The template or path cannot be read; the message says where."""


Step = Callable[[Any], Iterable[Any]]
"""From a value of JSON to the values that the step leads to."""


def _field(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and name in value:
        yield value[name]


def _every(value: Any) -> Iterable[Any]:
    """``*``: the values of an object, or the items of a list."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _deep(value: Any) -> Iterator[Any]:
    """``..``: the value and all values below it, without numbers, booleans and empty values, like client-go."""
    if isinstance(value, dict | list | str) and value:
        yield value
    for inner in _every(value):
        yield from _deep(inner)


def _sliced(part: slice, value: Any) -> Iterable[Any]:
    return value[part] if isinstance(value, list) else ()


def _union(steps: Sequence[Step], value: Any) -> Iterator[Any]:
    for step in steps:
        yield from step(value)


def _filtered(left: Side, operator: str, right: Side, value: Any) -> Iterator[Any]:
    """``operator`` is empty for a filter that asks whether the left side exists."""
    for item in _every(value):
        one, other = (list(side.of(item)) if isinstance(side, Path) else [side] for side in (left, right))
        if one and (not operator or (other and _compares(one[0], operator, other[0]))):
            yield item


def _compares(left: Any, operator: str, right: Any) -> bool:
    if operator in ("==", "!="):
        return bool((left == right) == (operator == "=="))
    try:
        return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])
    except TypeError:
        return False


@dataclass(frozen=True, slots=True)
class Path:
    """``is_absolute``: it begins with ``$``, so that it starts at the whole value inside a range as well."""

    steps: Sequence[Step]
    is_absolute: bool = False

    @classmethod
    def of_text(cls, text: str) -> Path:
        """Parse ``.a.b``, ``a.b`` or ``{.a.b}``, as custom-columns and --sort-by take it. Raises TemplateError."""
        inner = text.strip()
        inner = inner[1:-1].strip() if inner.startswith("{") and inner.endswith("}") else inner
        reader = _Reader(inner if inner[:1] in (".", "[", "$", "@") else f".{inner}")
        path = reader.path()
        if reader.left:
            raise TemplateError(f"{text!r}: cannot read {reader.left!r}")
        return path

    def of(self, value: Any) -> Iterable[Any]:
        """Return the values at the path below a value of JSON. A name that does not exist gives none."""
        found: list[Any] = [value]
        for step in self.steps:
            found = [inner for one in found for inner in step(one)]
        return found


Side = Path | str | float | bool | None
"""One side of a comparison."""


@dataclass(frozen=True, slots=True)
class _Range:
    path: Path
    body: Sequence[str | Path | _Range]


class Template:
    """A template of ``-o jsonpath=``. Raises TemplateError."""

    def __init__(self, text: str) -> None:
        self._parts = _Reader(text).template()

    def filled(self, value: Any) -> str:
        """Return the text for a value of JSON."""
        return "".join(_filled(self._parts, value, value))


def _filled(parts: Sequence[str | Path | _Range], here: Any, whole: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Path):
            yield " ".join(map(text_of, part.of(whole if part.is_absolute else here)))
        else:
            for item in part.path.of(whole if part.path.is_absolute else here):
                yield from _filled(part.body, item, whole)


def text_of(value: Any) -> str:
    """Return a value as kubectl prints it: texts as they are, anything else as JSON in one line."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class _Reader:
    """Reads a template or a path from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    @property
    def left(self) -> str:
        return self._text[self._at :]

    def template(self) -> Sequence[str | Path | _Range]:
        return self._body(is_inside=False)

    def _body(self, *, is_inside: bool) -> list[str | Path | _Range]:
        """Up to ``{end}`` inside a range, or to the end of the text."""
        parts: list[str | Path | _Range] = []
        while self.left:
            brace = self._text.find("{", self._at)
            if brace != self._at:
                parts.append(self._text[self._at : brace if brace >= 0 else len(self._text)])
                self._at = brace if brace >= 0 else len(self._text)
                continue
            self._at += 1
            while not self._took("}"):
                if not self.left:
                    raise TemplateError("a brace is not closed")
                if (word := re.match(r"(range|end)(?![\w.])", self.left)) is None:
                    parts.append(self._text_or_path())
                elif word[1] == "end":
                    self._at += 3
                    if not is_inside:
                        raise TemplateError("not in range, nothing to end")
                    self._expect("}")
                    return parts
                else:
                    self._at += 5
                    self._skip()
                    path = self.path()
                    self._expect("}")
                    parts.append(_Range(path, self._body(is_inside=True)))
                    break
        if is_inside:
            raise TemplateError("a range has no {end}")
        return parts

    def _text_or_path(self) -> str | Path:
        if (quoted := _QUOTED.match(self._text, self._at)) is not None:
            self._at = quoted.end()
            return _unquoted(quoted)
        if self._text[self._at] not in ".[$@*":
            word = _NAME.match(self._text, self._at)
            raise TemplateError(f"unrecognized identifier {word[0] if word else self.left}; a path begins with a dot")
        return self.path()

    def path(self) -> Path:
        steps: list[Step] = []
        is_absolute = self._took("$")
        if not is_absolute:
            self._took("@")
        while self.left:
            if re.match(r"\.{2,3}", self.left) and not self.left.startswith("...."):
                self._at += 2
                steps.append(_deep)
                if (name := _NAME.match(self._text, self._at)) is not None:
                    self._at = name.end()
                    steps.append(partial(_field, _unescaped(name[0])))
            elif self._took("*", ".*"):
                steps.append(_every)
            elif self.left[0] == ".":
                name = _NAME.match(self._text, self._at + 1)
                self._at = name.end() if name is not None else self._at + 1
                if name is not None:
                    steps.append(partial(_field, _unescaped(name[0])))
                elif self.left[:1] not in ("", "[", " ", "}", ")"):
                    raise TemplateError(f"expected a name at {self.left!r}")
            elif self.left[0] == "[":
                steps.append(self._brackets())
            else:
                break
        return Path(steps, is_absolute)

    def _brackets(self) -> Step:
        self._at += 1
        if self._took("?("):
            step = self._filter()
        elif self._took("*"):
            step = _every
        else:
            parts = [self._part()]
            while self._took(","):
                parts.append(self._part())
            step = partial(_union, parts)
        self._expect("]")
        return step

    def _part(self) -> Step:
        self._skip()
        if (quoted := _QUOTED.match(self._text, self._at)) is not None:
            self._at = quoted.end()
            return partial(_field, _unquoted(quoted))
        if (found := _SLICE.match(self._text, self._at)) is not None:
            self._at = found.end()
            return partial(_sliced, slice(*(int(text) if text else None for text in found.groups())))
        if (found := _INDEX.match(self._text, self._at)) is not None:
            self._at = found.end()
            index = int(found[1])
            return partial(_sliced, slice(index, index + 1 or None))
        raise TemplateError(f"invalid array index {self.left.partition(']')[0]!r}")

    def _filter(self) -> Step:
        left = self._side()
        self._skip()
        operator = _OPERATOR.match(self._text, self._at)
        if operator is None:
            self._expect(")")
            return partial(_filtered, left, "", None)
        self._at = operator.end()
        if self.left[:1] in ("<", ">", "="):
            raise TemplateError(f"unrecognized filter operator {operator[0]}{self.left[0]}")
        right = self._side()
        self._expect(")")
        return partial(_filtered, left, operator[0], right)

    def _side(self) -> Side:
        self._skip()
        if (quoted := _QUOTED.match(self._text, self._at)) is not None:
            self._at = quoted.end()
            return _unquoted(quoted)
        if (number := _NUMBER.match(self._text, self._at)) is not None:
            self._at = number.end()
            return float(number[0])
        if (word := re.match(r"(true|false|null)(?!\w)", self.left)) is not None:
            self._at += len(word[0])
            return {"true": True, "false": False}.get(word[0])
        if self.left[:1] not in ("@", "$", ".", "["):
            raise TemplateError(f"expected @.NAME, a number or a quoted text at {self.left!r}")
        return self.path()

    def _skip(self) -> None:
        while self.left[:1].isspace():
            self._at += 1

    def _took(self, *words: str) -> bool:
        self._skip()
        for word in words:
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return True
        return False

    def _expect(self, word: str) -> None:
        if not self._took(word):
            raise TemplateError(f"expected {word} at {self.left!r}" if self.left else f"{word} is missing at the end")


def _unquoted(quoted: re.Match[str]) -> str:
    return _unescaped(quoted[1] if quoted[1] is not None else quoted[2])


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
