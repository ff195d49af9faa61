"""What is wrong is named, with the object and a remedy, and harms nothing else on the same cluster or node."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run
from dra_kube import DEVICE_CLASSES, RESOURCE_CLAIMS, Invalid
from dra_kubeletplugin import Pool, ServerDied, device
from scene import Scene

MAIN = str(Path(__file__).resolve().parents[2] / "operator" / "main.py")


async def works(scene: Scene) -> None:
    """A pod of the scene gets a device and runs."""
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()


# --- what the API server refuses ---


async def test_a_class_whose_selector_cannot_be_parsed_is_refused(scene: Scene) -> None:
    with pytest.raises(Invalid) as refusal:
        await scene.create_class('device.driver == "unfinished')
    message = str(refusal.value)
    assert f'"{scene.class_name}" is invalid' in message
    assert "spec.selectors[0].cel.expression" in message
    assert "compilation failed" in message


async def test_a_claim_that_names_no_class_is_refused(scene: Scene) -> None:
    spec = {"devices": {"requests": [{"name": "req", "exactly": {"allocationMode": "All"}}]}}
    with pytest.raises(Invalid, match=r"spec\.devices\.requests\[0\]\.exactly\.deviceClassName: Required value"):
        await scene.create_claim(spec=spec)


async def test_a_malformed_claim_is_refused_with_every_fault(scene: Scene) -> None:
    exactly = {"deviceClassName": "Not_A_Name", "allocationMode": "Some"}
    spec = {"devices": {"requests": [{"name": "Two Words", "exactly": exactly}]}}
    body = {"metadata": {"name": "bad", "namespace": scene.namespace}, "spec": spec}
    with pytest.raises(Invalid) as refusal:
        await scene.api.create(RESOURCE_CLAIMS, body)
    for field in ("requests[0].name", "exactly.deviceClassName", "exactly.allocationMode"):
        assert field in str(refusal.value)


# --- what waits, and says for what ---


async def test_a_claim_that_names_an_unknown_class_waits_for_it(scene: Scene, neighbour: Scene) -> None:
    await scene.start_driver(with_class=False)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.pending(says=f"request req: device class {scene.class_name} does not exist")
    await neighbour.start_driver()
    await works(neighbour)
    await scene.create_class()
    await scene.runs()


async def test_a_selector_that_fails_on_devices_harms_only_claims_of_its_class(scene: Scene) -> None:
    await scene.start_driver(devices=2)
    broken = f"{scene.class_name}-broken"
    expression = f'device.driver == "{scene.driver_name}" && device.attributes["{scene.driver_name}"].nothing == 1'
    selectors = [{"cel": {"expression": expression}}]
    await scene.api.create(DEVICE_CLASSES, {"metadata": {"name": broken}, "spec": {"selectors": selectors}})
    try:
        wanting = scene.claim_spec({"name": "req", "exactly": {"deviceClassName": broken}})
        await scene.create_claim("unlucky", wanting)
        await scene.create_pod(scene.pod("unlucky", [{"name": "my-claim", "resourceClaimName": "unlucky"}]))
        reason = await scene.pending("unlucky", says="no such key")
        assert broken in reason, "the class at fault is named"
        await works(scene)
        await scene.stays_pending("unlucky", seconds=1)
    finally:
        await scene.api.delete(DEVICE_CLASSES, broken)


async def test_a_pod_that_names_a_missing_claim_waits_for_it(scene: Scene) -> None:
    await scene.start_driver(devices=2)
    await scene.create_pod(scene.pod("early", [{"name": "my-claim", "resourceClaimName": "later"}]))
    assert "later" in await scene.pending("early", says="not found|does not exist")
    await works(scene)
    await scene.create_claim("later")
    await scene.runs("early")


async def test_a_pod_that_names_a_missing_template_waits_for_it(scene: Scene) -> None:
    await scene.start_driver(devices=2)
    await scene.create_pod(scene.inline_pod("early", template="later"))
    await scene.event("early", "FailedResourceClaimCreation", "later")
    await works(scene)
    await scene.create_template("later")
    await scene.runs("early")


# --- plugins that do not answer ---


async def test_a_plugin_that_hangs_does_not_hold_up_another_driver_on_the_node(scene: Scene, neighbour: Scene) -> None:
    await scene.start_driver()
    await neighbour.start_driver()
    hanging = scene.plugins[0]
    with hanging.faults.blocking("NodePrepareResources"):
        await scene.create_claim()
        await scene.create_pod(scene.pod())
        await hanging.recorder.arrived("NodePrepareResources")
        await works(neighbour)
        assert (await neighbour.get_pod())["spec"]["nodeName"] == (await scene.get_pod())["spec"]["nodeName"]
        await scene.stays_pending(seconds=0.5)
    await scene.runs()


async def test_a_plugin_whose_sockets_vanish_is_named_by_itself_and_by_the_node(scene: Scene, neighbour: Scene) -> None:
    await scene.start_driver(devices=2)
    await neighbour.start_driver()
    lost = scene.plugins[0]
    socket = lost.plugin.settings.registration_path
    with lost.faults.blocking("NodePrepareResources"):
        await scene.create_claim()
        await scene.create_pod(scene.pod())
        await lost.recorder.arrived("NodePrepareResources")
        socket.unlink()
        with pytest.raises(ServerDied, match=f"{socket}.*"):
            await lost.plugin.wait()
        await lost.stop()
    await scene.event("tester", "FailedPrepareDynamicResources", f"DRA driver {scene.driver_name} is not registered")
    await works(neighbour)
    await scene.start_plugin(0, {scene.node_names[0]: Pool.of([device("device-00"), device("device-01")])})
    await scene.runs()


# --- what the operator says that cannot start at all ---


@pytest.mark.parametrize(
    "command",
    [["kopf", "run", "--all-namespaces", MAIN], ["dra-operator", "run"]],
    ids=["kopf run", "dra-operator run"],
)
async def test_a_kubeconfig_that_points_nowhere_is_named_with_a_remedy(command: list[str], tmp_path: Path) -> None:
    code, output = await run(command, KUBECONFIG=tmp_path / "missing")
    assert code != 0
    first = output.splitlines()[0]  # Kopf adds its own trace below
    assert f"{tmp_path / 'missing'} does not exist; pass --kubeconfig FILE, set KUBECONFIG" in first


async def test_a_kubeconfig_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("clusters: [")
    code, output = await run(["dra-operator", "run"], KUBECONFIG=tmp_path / "broken")
    assert code == 2
    (line,) = output.splitlines()
    assert line.startswith(f"dra-operator: cannot read the kubeconfig {tmp_path / 'broken'}, line 2: ")
