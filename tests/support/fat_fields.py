"""Objects of which one field is large, whichever it is: made from the types that the decoder reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_api.codec import encode
from msgspec import inspect

FAT = 60_000
"""Bytes of the field, about."""
DEPTH = 9


def values(kind: inspect.Type, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each way to make a value of the type large, named by the path of the field that is."""
    if depth > DEPTH:
        return
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from values(each, depth)
        case inspect.DictType(value_type=item):
            yield "{}", {f"{number:06d}.example.com/{'x' * 40}": lean(item) for number in range(FAT // 80)}
            if isinstance(item, inspect.StrType):
                yield "{x}", {"example.com/text": "x" * FAT}
            for path, value in values(item, depth + 1):
                yield f"{{}}{path}", {"key": value}
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            # Many short entries, and few long ones: a limit of either kind alone does not hold the other.
            for name, length in (("[]", 40), ("[long]", 240)):
                size = len(encode(numbered(item, 0, length))) + 1
                yield name, [numbered(item, number, length) for number in range(FAT // size)]
            for path, value in values(item, depth + 1):
                yield f"[]{path}", [value]
        case inspect.StructType(fields=fields):
            for field in fields:
                for path, value in values(field.type, depth + 1):
                    needed = {it.encode_name: lean(it.type) for it in fields if it.required}
                    yield f".{field.encode_name}{path}", {**needed, field.encode_name: value}
        case inspect.AnyType() | inspect.RawType():
            yield "", {"text": "x" * FAT}


def lean(kind: inspect.Type) -> Any:
    """Some short value of the type."""
    match kind:
        case inspect.UnionType(types=types):
            return lean(next(it for it in types if not isinstance(it, inspect.NoneType)))
        case inspect.StrType():
            return "short"
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.StructType(fields=fields):
            return {it.encode_name: lean(it.type) for it in fields if it.required}
        case inspect.DictType() | inspect.AnyType() | inspect.RawType():
            return {}
        case inspect.VarTupleType() | inspect.ListType():
            return []
    return "1"


def numbered(kind: inspect.Type, number: int, length: int) -> Any:
    """A short value, different from its neighbours if it has a text."""
    text = f"{number:06d}-{'x' * length}"
    match kind:
        case inspect.StrType():
            return text
        case inspect.StructType(fields=fields):
            texts = {it.encode_name: text for it in fields if isinstance(it.type, inspect.StrType)}
            return {**lean(kind), **texts}
    return lean(kind)
