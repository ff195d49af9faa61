"""The servers of ``KUBEBUILDER_ASSETS``: one that ends by itself is noticed at once, with what it said."""

from __future__ import annotations

import time
from pathlib import Path

import envtest
import pytest

ENDS = "echo {name} cannot bind its port; exit 3"
RUNS = "exec sleep 600"
CASES = [("etcd", ENDS, RUNS), ("kube-apiserver", RUNS, ENDS)]


@pytest.mark.parametrize(("ends", "etcd", "apiserver"), CASES, ids=[case[0] for case in CASES])
def test_a_server_that_ends_at_start_is_noticed_at_once(tmp_path: Path, ends: str, etcd: str, apiserver: str) -> None:
    for name, script in (("etcd", etcd), ("kube-apiserver", apiserver)):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script.format(name=name)}\n")
        program.chmod(0o755)
    begun = time.monotonic()
    expected = f"{ends} ended by itself with 3: {ends} cannot bind its port"
    with pytest.raises(envtest.ProcessEnded, match=expected), envtest.real_api_server(tmp_path, tmp_path):
        raise AssertionError("it must not be taken for running")
    assert time.monotonic() - begun < 10
