"""No body, however odd, makes the server fail: it is taken, or refused with a Status that is the client's fault."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from bare_client import CLAIMS, CONFIG_MAPS, DRA, PATCH, PODS, claim, pod
from dra_devcluster.apiserver import DevApiServer, serve_in_thread
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rounds import fewer

WORDS = """
    apiVersion kind metadata name namespace labels finalizers ownerReferences uid resourceVersion spec
    status containers image resources requests limits claims volumes tolerations devices exactly
    firstAvailable selectors cel expression allocation results reservedFor pool driver nodeSelector
    nodeSelectorTerms items $patch data
"""
NAMES = st.sampled_from(WORDS.split())
TEXTS = st.sampled_from(["", "a", "A_b", "v1", "Pod", "1Gi", "2020-01-01T00:00:00Z", "\u0000", "ä" * 300])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=25
)
CREATED = [
    (CONFIG_MAPS, {}),
    (PODS, pod("fuzz")),
    (CLAIMS, claim("fuzz")),
    (f"{DRA}/resourceslices", {}),
    (f"{DRA}/deviceclasses", {}),
    ("/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims", {}),
    ("/apis/apps/v1/namespaces/default/deployments", {}),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {}),
    ("/apis/events.k8s.io/v1/namespaces/default/events", {}),
    ("/apis/authentication.k8s.io/v1/tokenreviews", {}),
    (f"{PODS}/there/binding", {"metadata": {"name": "there"}}),
    (f"{PODS}/there/eviction", {"metadata": {"name": "there"}}),
    ("/api/v1/namespaces/default/serviceaccounts/default/token", {}),
]
PATCHED = [f"{PODS}/there", f"{PODS}/there/status", f"{CLAIMS}/there", f"{CLAIMS}/there/status"]


class Fuzz:
    """One connection to one server."""

    def __init__(self, server: DevApiServer) -> None:
        context = ssl.create_default_context(cafile=str(server.ca_file))
        self._connection = http.client.HTTPSConnection(server.host, server.port, context=context)
        self._token = server.token

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, path: str, body: object, kind: str = "application/json") -> None:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        self._connection.request(method, path, json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status < 500 or content["message"] == AS_KUBERNETES, content
        if answer.status >= 400:
            assert content["kind"] == "Status"
            assert content["message"]


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    with serve_in_thread() as server:
        made = Fuzz(server)
        made.send("POST", PODS, pod("there"))
        made.send("POST", CLAIMS, claim("there"))
        yield made
        made.close()


AS_KUBERNETES = "resourceVersion should not be set on objects to be created"
"""What its API server calls an error of its own."""
FUZZING = settings(
    max_examples=fewer(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize(("path", "base"), CREATED)
@FUZZING
@given(part=st.dictionaries(NAMES, VALUES, max_size=4))
@example(part={"spec": {"containers": None}})
@example(part={"spec": None, "metadata": None})
@example(part={"spec": {"containers": [None], "initContainers": [None], "volumes": [None], "tolerations": [None]}})
@example(part={"spec": {"containers": [{"name": "a", "env": [None], "ports": [None], "volumeMounts": [None]}]}})
@example(part={"spec": {"devices": {"requests": [None], "constraints": [None], "config": [None]}}})
@example(part={"spec": {"versions": [None], "names": None, "group": "a"}})
@example(part={"spec": {"versions": [{"schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": None}}}}]}})
@example(part={"metadata": {"name": "a", "ownerReferences": [None], "finalizers": [None], "managedFields": [None]}})
@example(part={"spec": {"selector": {"matchLabels": None}, "template": {"spec": {"containers": [None]}}}})
@example(part={"metadata": {"labels": None, "name": "a"}, "spec": {"template": None}})
def test_any_object_is_taken_or_refused(fuzz: Fuzz, path: str, base: dict[str, Any], part: dict[str, Any]) -> None:
    fuzz.send("POST", path, {**base, **part})


@pytest.mark.parametrize("how", ["merge", "strategic"])
@pytest.mark.parametrize("path", PATCHED)
@FUZZING
@given(patch=VALUES)
def test_any_patch_is_taken_or_refused(fuzz: Fuzz, path: str, how: str, patch: object) -> None:
    fuzz.send("PATCH", path, patch, PATCH[how])
