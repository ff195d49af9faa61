"""Names and socket paths of an instance (plugin-helper.md 2.2), and the builders of devices."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dra_api.codec import to_dict
from dra_api.resource import DeviceAttribute
from dra_kubeletplugin import PluginSettings, Pool, PoolInvalid, SettingsError, check_resources, counter_set, device

BASE = PluginSettings(driver_name="gpu.example.com")


def test_default_paths_are_those_of_a_kubelet() -> None:
    assert BASE.registration_path == Path("/var/lib/kubelet/plugins_registry/gpu.example.com-reg.sock")
    assert BASE.plugin_path == Path("/var/lib/kubelet/plugins/gpu.example.com/dra.sock")
    assert BASE.lock_folder is None


def test_a_rolling_update_has_sockets_per_pod_and_common_locks() -> None:
    settings = replace(BASE, rolling_update_uid="0f1e")
    assert settings.registration_path.name == "gpu.example.com-0f1e-reg.sock"
    assert settings.plugin_path.name == "dra-0f1e.sock"
    assert settings.lock_folder == Path("/var/lib/kubelet/plugins/gpu.example.com")
    assert replace(settings, lock_dir="/run/gpu").lock_folder == Path("/run/gpu")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rolling_update_uid": "../x"}, "rolling_update_uid is '../x', which cannot be a part of a socket's name"),
        ({"plugin_socket": "a/b.sock"}, "plugin_socket is 'a/b.sock', which cannot be"),
        ({"registrar_socket": "a\0"}, "registrar_socket is 'a.x00', which cannot be"),
        ({"cdi_dir": ""}, "cdi_dir is empty: name a directory, or leave it out"),
        ({"registry_dir": ""}, "registry_dir is empty"),
    ],
)
def test_a_name_that_leaves_its_folder_and_a_folder_without_a_name_are_refused(
    fields: dict[str, str], text: str
) -> None:
    """CDI files were written into the working directory; a socket was missed in a folder that nobody had named."""
    with pytest.raises(SettingsError, match=text):
        PluginSettings(driver_name="gpu.example.com", **fields)  # type: ignore[arg-type]  # texts only


@pytest.mark.rule("K37-META-02")
@pytest.mark.parametrize(
    ("asked", "written"),
    [(False, ()), (True, ("v1alpha1",)), (["v1beta1"], ("v1beta1",)), (("v1beta1", "v1alpha1"),) * 2],
)
def test_device_metadata_have_the_versions_of_1_36_or_those_of_a_list(asked: Any, written: tuple[str, ...]) -> None:
    assert replace(BASE, device_metadata=asked).metadata_versions == written


@pytest.mark.rule("K37-META-03")
@pytest.mark.parametrize("asked", [[], ["v1alpha1"], ["v1beta1", "v9"], ["v1beta1"] * 2, "v1beta1"], ids=repr)
def test_a_list_of_versions_of_device_metadata_has_v1beta1_and_nothing_unknown(asked: Any) -> None:
    with pytest.raises(SettingsError, match=r"^device_metadata: .*known are v1beta1, v1alpha1$"):
        replace(BASE, device_metadata=asked)


UID = "3b1c6d0e-8c1d-4b52-9c3f-0a54c0ffee00"
LENGTHS = [
    ("short enough: everything readable", "gpu.example.com", rf"gpu\.example\.com-{UID}-reg\.sock"),
    (
        "the uid is hashed",
        "quite-a-long-name.gpu.example.com",
        r"quite-a-long-name\.gpu\.example\.com-[\w-]{11}-reg\.sock",
    ),
    ("the driver too", "x" * 63, r"dra-[\w-]{22}-reg\.sock"),
]


@pytest.mark.rule("K37-RS-01", "K37-RS-02")
@pytest.mark.parametrize(("driver", "pattern"), [case[1:] for case in LENGTHS], ids=[case[0] for case in LENGTHS])
def test_registration_sockets_stay_within_the_limit_of_the_system(driver: str, pattern: str) -> None:
    settings = replace(BASE, driver_name=driver, rolling_update_uid=UID, data_dir=Path("/p"))
    assert re.fullmatch(pattern, settings.registration_path.name)
    assert len(str(settings.registration_path)) < 108


@pytest.mark.parametrize(("length", "hashed"), [(36, False), (37, True), (63, True)])
def test_a_long_driver_name_leaves_room_for_the_sockets_of_a_rolling_update(length: int, hashed: bool) -> None:
    """A name of a driver may have 63 characters; with the uid of a pod the path of the socket would have 134."""
    settings = PluginSettings(driver_name="x" * length, rolling_update_uid=UID)
    pattern = r"dra-[\w-]{8}\.sock" if hashed else rf"dra-{UID}\.sock"
    assert re.fullmatch(pattern, settings.plugin_path.name)
    assert settings.plugin_sockets.fullmatch(settings.plugin_path.name)
    other = replace(settings, rolling_update_uid=UID[:-1] + "1")
    assert settings.plugin_path != other.plugin_path


def test_hashed_names_tell_drivers_and_instances_apart() -> None:
    names = {
        replace(BASE, driver_name=driver, rolling_update_uid=uid, data_dir=Path("/p")).registration_path
        for driver in ("x" * 63, "y" * 63)
        for uid in (UID, UID[:-1] + "1")
    }
    assert len(names) == 4


BAD = [
    ("no name", {"driver_name": ""}, "the driver name '' is not a DNS subdomain"),
    ("upper case", {"driver_name": "GPU.example.com"}, "lower-case letters"),
    ("too long a name", {"driver_name": "x" * 64}, "at most 63"),
    ("a name with a slash", {"driver_name": "a/b"}, "DNS subdomain"),
    ("a bad node name", {"node_name": "Worker 1"}, "the node name 'Worker 1'"),
    ("no version at all", {"serve_v1": False, "serve_v1beta1": False}, "serve_v1"),
    ("a name for a socket that has one", {"rolling_update_uid": "u", "plugin_socket": "x.sock"}, "do not set"),
    ("a path that no socket can have", {"data_dir": Path("/" + "x" * 120)}, "more than 107 bytes: use shorter"),
]


@pytest.mark.parametrize(("changes", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_unusable_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        replace(BASE, **changes)


def test_devices_from_plain_values() -> None:
    built = device(
        "gpu-0",
        attributes={"model": "A100", "ecc": True, "index": 0, "v": DeviceAttribute(version="1.2.3"), "l": ["a", "b"]},
        capacity={"memory": "80Gi", "cores": 4},
        consumes={"mem": {"slices": 2}},
        allow_multiple_allocations=True,
    )
    assert to_dict(built) == {
        "name": "gpu-0",
        "attributes": {
            "model": {"string": "A100"},
            "ecc": {"bool": True},
            "index": {"int": 0},
            "v": {"version": "1.2.3"},
            "l": {"strings": ["a", "b"]},
        },
        "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "4"}},
        "consumesCounters": [{"counterSet": "mem", "counters": {"slices": {"value": "2"}}}],
        "allowMultipleAllocations": True,
    }
    assert to_dict(counter_set("mem", {"slices": 8})) == {"name": "mem", "counters": {"slices": {"value": "8"}}}


@pytest.mark.parametrize("value", [1.5, None, [], [1, "a"], {"string": "x"}])
def test_values_that_are_no_attribute(value: object) -> None:
    with pytest.raises(TypeError, match="is not an attribute value"):
        device("a", attributes={"x": value})  # type: ignore[dict-item]  # the mistake


def test_what_an_api_server_would_refuse_is_found_before_publishing() -> None:
    check_resources({"p": Pool.of([device("a")])}, driver="gpu.example.com", node_name="n")
    with pytest.raises(PoolInvalid, match=r'pool "p", slice #0: device "A_": spec\.devices\[1\]\.name'):
        check_resources({"p": Pool.of([device("a"), device("A_")])}, driver="gpu.example.com", node_name="n")
    with pytest.raises(PoolInvalid, match="exactly one of"):
        check_resources({"p": Pool.of([device("a")])}, driver="gpu.example.com")
    with pytest.raises(PoolInvalid, match="duplicate device"):
        check_resources({"p": Pool.of([device("a"), device("a")])}, driver="gpu.example.com", node_name="n")
