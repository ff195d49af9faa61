"""JSON that nests deeper than Python's decoders go, cut to a depth that they read.

The API server accepts 10,000 levels, and the opaque parameters of a claim have room for 5,000; Python's decoders raise
RecursionError, some at 1,000, from 3.14 on where the stack ends. One such object must not keep the others of a list
from being read. So where that happens, what nests too deep is replaced by ``TOO_DEEP``; only a scan for brackets is
needed for that, no recursion.
"""

from __future__ import annotations

import re
from typing import Final

JSON_LEVELS: Final = 500
TOO_DEEP: Final = f"nested more than {JSON_LEVELS} levels deep"
_MARK: Final = b'"%s"' % TOO_DEEP.encode()
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def shallow(data: bytes) -> bytes:
    """The JSON with ``TOO_DEEP`` in the place of each array or object below that many others.

    >>> shallow(b'{"a":' * 600 + b"1" + b"}" * 600).count(b"{")
    500
    """
    parts: list[bytes] = []
    depth = kept = 0
    for match in _TOKEN.finditer(data):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
            if depth == JSON_LEVELS + 1:
                parts.append(data[kept : match.start()])
        elif token in (b"}", b"]"):
            if depth == JSON_LEVELS + 1:
                parts.append(_MARK)
                kept = match.end()
            depth -= 1
    return b"".join((*parts, data[kept:])) if depth <= JSON_LEVELS else data


def was_cut(data: bytes) -> bool:
    """Whether ``shallow`` has replaced something."""
    return _MARK in data
