"""Random pods are placed by kube-scheduler and, in the same cluster, by our rules: both must say the same.

``KOPF_DRA_ROUNDS=1000 KUBEBUILDER_ASSETS=FOLDER pytest tests/reliability/test_like_kube_scheduler.py -s`` tries a
thousand scenes of each kind; every difference is printed with its seed.
"""

from __future__ import annotations

from pathlib import Path

import envtest
import pytest
from dra_kube import Api, connection
from envtest import needs_stock_control_plane
from like_scheduler import Trial, device_scene, node_scene, preference_scene
from rounds import rounds

KINDS = {"nodes": node_scene, "preferences": preference_scene, "devices": device_scene}


@needs_stock_control_plane
@pytest.mark.timeout(36000)
async def test_kube_scheduler_takes_a_node_that_fits_and_none_if_none_does(tmp_path: Path) -> None:
    """Of nodes that fit it takes one with the highest score, and the same devices; room is weighed in another way."""
    binaries = envtest.assets()
    assert binaries is not None
    differences: list[str] = []
    with envtest.scheduling_api_server(binaries, tmp_path) as kubeconfig:
        async with Api(connection(kubeconfig)) as api:
            trial = Trial(api)
            for seed in rounds(12):
                for kind, scene in KINDS.items():
                    for difference in await trial.differences(scene(seed)):
                        differences.append(f"{kind}, seed {seed}: {difference}")
                        print(differences[-1])
    print(
        f"{trial.decided} pods, {trial.bound} bound, {trial.refused} objects invalid; differences: {len(differences)}"
    )
    assert trial.bound > trial.decided / 5
    assert differences == []
