"""Parameters of requests and options of deletions: what counts, and what is refused; the same on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from bare_client import CONFIG_MAPS, PATCH, Client, causes, config_map
from rbac_cases import SERVERS, rbac_server

NONE_MATCH = "labelSelector=none"
INVALID, UNSUPPORTED, FORBIDDEN = "FieldValueInvalid", "FieldValueNotSupported", "FieldValueForbidden"
MATCH = "resourceVersionMatch"


@pytest.fixture(params=SERVERS)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with rbac_server(request.param, tmp_path) as client:
        yield client


async def _codes(client: Client, method: str, paths: list[str], body: object = None) -> list[int]:
    return [(await client.call(method, path, body)).code for path in paths]


async def test_numbers_and_flags_of_lists_are_read_as_go_reads_them(both: Client) -> None:
    for name in ("timeoutSeconds", "limit"):
        texts = {"5": 200, "-1": 200, "+3": 200, "x": 400, "1.5": 400, "": 400, " 1": 400, "9" * 20: 400, "0x10": 400}
        paths = [f"{CONFIG_MAPS}?{NONE_MATCH}&{name}={quote(text)}" for text in texts]
        assert await _codes(both, "GET", paths) == list(texts.values())
    assert (await both.call("GET", f"{CONFIG_MAPS}?limit=x")).message == 'strconv.ParseInt: parsing "x": invalid syntax'
    for text in ("x", "-1", "1.5"):
        answer = await both.call("GET", f"{CONFIG_MAPS}?{NONE_MATCH}&resourceVersion={text}")
        why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        said = f'invalid resource version: resourceVersion: Invalid value: "{text}": {why}'
        assert (answer.code, answer.message) == (400, said)
    for text, watches in {"": True, "1": True, "yes": True, "0": False, "False": False}.items():
        answer = await both.call("GET", f"{CONFIG_MAPS}?{NONE_MATCH}&timeoutSeconds=1&watch={text}")
        assert (answer.code, not answer.body) == (200, watches)


async def test_options_of_lists_that_do_not_go_together(both: Client) -> None:
    refused = {
        "resourceVersionMatch=Exact": [(MATCH, FORBIDDEN)],
        "resourceVersionMatch=x": [(MATCH, FORBIDDEN), (MATCH, UNSUPPORTED)],
        "resourceVersionMatch=Exact&resourceVersion=0": [(MATCH, FORBIDDEN)],
        "resourceVersionMatch=Exact&resourceVersion=1&continue=x": [(MATCH, FORBIDDEN)],
        "sendInitialEvents=false": [("sendInitialEvents", FORBIDDEN)],
        "watch=1&resourceVersionMatch=NotOlderThan": [(MATCH, FORBIDDEN)],
        "watch=1&resourceVersionMatch=Exact": [(MATCH, FORBIDDEN), (MATCH, UNSUPPORTED)],
        "watch=1&sendInitialEvents=true": [(MATCH, FORBIDDEN)],
        "watch=1&continue=x": [(MATCH, FORBIDDEN)],
    }
    for query, faults in refused.items():
        answer = await both.call("GET", f"{CONFIG_MAPS}?timeoutSeconds=1&{query}")
        assert (answer.code, query, causes(answer.json)) == (422, query, faults)


async def test_a_dry_run_is_asked_for_in_one_word(both: Client) -> None:
    await both.post(CONFIG_MAPS, config_map("a"))
    queries = {"dryRun=All": 200, "dryRun=All&dryRun=All": 200, "dryRun=": 422, "dryRun=None": 422, "dryRun=all": 422}
    queries |= {"dryRun=All&dryRun=x": 422, "dryRun=All,All": 422}
    paths = [f"{CONFIG_MAPS}/a?{query}" for query in queries]
    assert await _codes(both, "DELETE", paths) == list(queries.values())
    assert await _codes(both, "PUT", paths, config_map("a")) == list(queries.values())
    patched = [(await both.call("PATCH", path, {}, kind=PATCH["merge"])).code for path in paths]
    assert patched == list(queries.values())
    texts = {"dryRun=None": '["None"]', "dryRun=": '[""]', "dryRun=All&dryRun=x": '["All","x"]'}
    for query, shown in texts.items():
        answer = await both.call("POST", f"{CONFIG_MAPS}?{query}", config_map("b"))
        said = f'dryRun: Unsupported value: {shown}: supported values: "All"'
        assert (answer.code, answer.message) == (422, f'CreateOptions.meta.k8s.io "" is invalid: {said}')


async def test_the_options_of_a_deletion_are_checked(both: Client) -> None:
    await both.post(CONFIG_MAPS, config_map("a"))
    field = "propagationPolicy"
    refused = {
        "propagationPolicy=": [(field, UNSUPPORTED)],
        "propagationPolicy=x&dryRun=x": [(field, UNSUPPORTED), ("dryRun", UNSUPPORTED)],
        "propagationPolicy=x&orphanDependents=true": [(field, INVALID), (field, UNSUPPORTED)],
    }
    for query, faults in refused.items():
        answer = await both.call("DELETE", f"{CONFIG_MAPS}/a?{query}")
        assert (answer.code, causes(answer.json)) == (422, faults)
    seconds = {"x": 400, "1.5": 400, "": 400, "0": 200}
    paths = [f"{CONFIG_MAPS}/a?dryRun=All&gracePeriodSeconds={text}" for text in seconds]
    assert await _codes(both, "DELETE", paths) == list(seconds.values())
    assert (await both.call("DELETE", f"{CONFIG_MAPS}/a", {"kind": "Pod", "apiVersion": "v1"})).code == 400
    assert (await both.call("DELETE", f"{CONFIG_MAPS}/a", {"dryRun": ["All", "All"]})).code == 200
    assert await both.code(f"{CONFIG_MAPS}/a") == 200


async def test_the_query_of_a_deletion_does_not_count_beside_a_body(both: Client) -> None:
    await both.post(CONFIG_MAPS, config_map("a"))
    await both.delete(f"{CONFIG_MAPS}/a?dryRun=All&propagationPolicy=x&gracePeriodSeconds=x", {})
    assert await both.code(f"{CONFIG_MAPS}/a") == 404
