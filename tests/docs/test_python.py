"""The Python on the pages runs. The blocks of a page share their names, as they do for a reader who types them in.

Tests are run by test_pasted_tests.py.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import allocator_lab as lab
import dra_operator.allocator
import pytest
from dra_api.codec import convert
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_devcluster.agent import LocalRuntime, NodeAgent
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import Api, connection
from dra_ledger.cel_language import CelSelectors
from pages import PAGES, Page, is_test

Names = dict[str, Any]
OTHERWISE = {  # what a test cannot do as it is written
    'Path("/tmp/n1")': "root",
    'Path("cluster.json")': '(root / "cluster.json")',
    "load_kube_config()": "load_kube_config(config_file=os.environ['KUBECONFIG'])",  # read when it was imported
}


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="d") as path:
        yield Path(path)


@pytest.fixture
async def api(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    with serve_in_thread() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(root / "kubeconfig")))
        async with Api(connection()) as client:
            yield client


def for_the_allocator(_names: Names, _root: Path) -> Names:
    (slice_,) = lab.pool(lab.device("a"), lab.device("b"))
    claims = [convert(ResourceClaim, lab.claim(lab.request("r")))]
    return {
        **{name: getattr(dra_operator.allocator, name) for name in dra_operator.allocator.__all__},
        "CelSelectors": CelSelectors,
        "uuid": uuid,
        "nodes": {"n1": lab.make_node("n1")},
        "claims": claims,
        "allocated_claims": (),
        "resource_slice": convert(ResourceSlice, slice_),
        "device_class": convert(DeviceClass, lab.device_class("any")),
    }


def for_the_node_agent(_names: Names, root: Path) -> Names:
    return {"NodeAgent": NodeAgent, "LocalRuntime": LocalRuntime, "root": root / "n", "Path": Path}


def for_the_ledger(_names: Names, root: Path) -> Names:
    items = [*lab.pool(lab.device("a"), lab.device("b")), lab.device_class("any")]
    for item in items:
        item |= {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice" if "pool" in item["spec"] else "DeviceClass",
        }
    (root / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    return {"root": root, "os": os}


BEFORE: dict[tuple[str, int], Callable[[Names, Path], Names]] = {
    ("docs/choosing-devices.md", 0): for_the_allocator,
    ("docs/node-agent.md", 0): for_the_node_agent,
    ("docs/ledger.md", 0): for_the_ledger,
}


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks("python")], ids=lambda page: page.name)
async def test_the_python_of_a_page_runs(page: Page, root: Path, api: Api) -> None:
    names: Names = {"api": api}
    async with NodeAgent(api, "worker-1", root=root / "n"):
        for number, block in enumerate(page.blocks("python")):
            if prepare := BEFORE.get((page.name, number)):
                names |= prepare(names, root)
            for shown, instead in OTHERWISE.items():
                block = block.replace(shown, instead)
            code = compile(block, f"{page.name}, block {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if is_test(block):
                continue
            if inspect.isawaitable(waiting := eval(code, names)):
                await waiting
