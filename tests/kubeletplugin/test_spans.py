"""The trace of a claim on its node: the kubelet's call, and in it what the driver did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from monitoring import Recording, Tree, recorded
from node_world import DRIVER, NodeWorld, allocated, ref


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    with recorded(monkeypatch) as made:
        yield made


async def test_preparing_and_unpreparing(tmp_path: Path, recording: Recording) -> None:
    node, claim = NodeWorld(tmp_path), allocated("claim")
    assert not isinstance(await node.prepared.prepare(claim), Exception)
    assert not isinstance(await node.prepared.prepare(claim), Exception)
    assert await node.prepared.unprepare(ref("claim")) is None
    driver: Tree = ("driver", [])
    assert recording.trees() == [("prepare", [driver]), ("prepare", []), ("unprepare", [driver])]
    (first, _), (last,) = recording.all("prepare"), recording.all("unprepare")
    about = {"uid": claim.metadata.uid, "driver": DRIVER, "request": 0}
    assert dict(first.attributes or {}) == {"claim": claim.key, **about}
    assert dict(last.attributes or {}) == {"claim": str(ref("claim")), **about}
