"""The watch over secrets in logs sees what it is there for."""

from __future__ import annotations

import logging

import pytest
from command import MARK, Watch, secret_in
from dra_devcluster.apiserver.identity import Tokens
from dra_devcluster.apiserver.rbac import ADMIN
from dra_devcluster.apiserver.store import Store


@pytest.fixture
def watch() -> Watch:
    return Watch()


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    trace = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("x", logging.DEBUG, __file__, 1, "%s", (message,), trace)


def test_tokens_and_the_mark_are_seen_wherever_they_stand(watch: Watch) -> None:
    tokens = Tokens(Store())
    account = {"metadata": {"namespace": "a", "name": "b", "uid": "c"}}
    issued, _ = tokens.issue(account, 600, ["audience"], {})
    for secret in (MARK, tokens.admin, tokens.credential(ADMIN), issued, "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.x"):
        assert secret_in(f"Authorization: Bearer {secret}") is not None
    watch.handle(record("fine", ValueError(f"no such user: {tokens.admin}")))
    (shown,) = watch.found
    assert tokens.admin not in shown.partition(" in: ")[0]


def test_what_is_no_secret_is_not_seen(watch: Watch) -> None:
    watch.handle(record("GET /apis/resource.k8s.io/v1: 200, the token expired, eyJhbGci"))
    assert watch.found == []
