"""The ledger loads what it needs: programs that ask it once should not wait for it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

LOADED: Final = "import json, sys; {0}; print(json.dumps(list(sys.modules)))"
HEAVY: Final = {
    "aiohttp",
    "dataclasses",
    "difflib",
    "dra_cel",
    "dra_kube",
    "dra_operator",
    "grpc",
    "kopf",
    "kubernetes",
    "prometheus_client",
    "re2",
    "yaml",
}
LATER: Final = {"dra_api.validation"}
"""Needed for node selectors alone."""


def loaded(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", LOADED.format(code)], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_package_alone_loads_nothing() -> None:
    ours = {name for name in loaded("import dra_ledger") if name.startswith("dra_")}
    assert ours == {"dra_ledger"}


def test_the_ledger_loads_no_client_and_no_language_of_selectors() -> None:
    names = loaded("from dra_ledger import Ledger; Ledger.of([]).devices()")
    assert (HEAVY | LATER) & names == set()
    assert "dra_ledger.inventory" in names


def test_a_class_brings_the_language_of_selectors() -> None:
    code = (
        "from dra_ledger import Ledger; selectors = [{'cel': {'expression': 'true'}}];"
        "pool = {'name': 'p', 'generation': 1, 'resourceSliceCount': 1};"
        "spec = {'driver': 'd', 'pool': pool, 'allNodes': True, 'devices': [{'name': 'a'}]};"
        "slice_ = {'kind': 'ResourceSlice', 'metadata': {'name': 's'}, 'spec': spec};"
        "class_ = {'kind': 'DeviceClass', 'metadata': {'name': 'c'}, 'spec': {'selectors': selectors}};"
        "assert len(Ledger.of(slice_, class_).devices(device_class='c')) == 1"
    )
    assert "dra_cel" in loaded(code)
