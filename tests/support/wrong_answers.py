"""Answers of 200 that no API server gives: what stands between us and it may say anything."""

from __future__ import annotations

from typing import Final

DEEP: Final = b"[" * 20_000 + b"]" * 20_000

NO_OBJECT: Final[dict[str, bytes]] = {
    "nothing": b"",
    "a blank": b" \n",
    "a list": b"[]",
    "a list of objects": b'[{"kind":"Pod","metadata":{"name":"p"}}]',
    "a text": b'"ok"',
    "a number": b"3",
    "null": b"null",
    "true": b"true",
    "a page": b"<html><body>please log in</body></html>",
    "half an object": b'{"kind":"Pod","metadata":{"name":',
    "no UTF-8": b'\xff\xfe{"kind":"Pod"}',
    "half of a pair": b'"\\ud800"',
    "what never closes": b"[" * 20_000,
    "what nests deep": DEEP,
}
"""What is no JSON object at all."""
NO_KUBERNETES: Final[dict[str, bytes]] = {
    "an empty object": b"{}",
    "an object of another API": b'{"status":"ok","items":3}',
    "an error of a proxy": b'{"error":{"code":503,"message":"upstream is away"}}',
    "metadata that are none": b'{"kind":"%s","metadata":3}',
    "metadata without a name": b'{"kind":"%s","metadata":{}}',
    "a name that is none": b'{"kind":"%s","metadata":{"name":["p"]}}',
    "another kind": b'{"kind":"Odd","metadata":{"name":"p","resourceVersion":"1"}}',
    "a refusal": b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":503}',
    "a list in place of an object": b'{"kind":"%sList","items":{},"metadata":{"resourceVersion":"1"}}',
}
"""Objects that are not what was asked for; ``%s`` stands for the kind."""


def wrong_answers(kind: str) -> dict[str, bytes]:
    """Return all of them, by a name for each."""
    return NO_OBJECT | {name: body.replace(b"%s", kind.encode()) for name, body in NO_KUBERNETES.items()}
