"""Which files are accepted and refused. Each row is a decision of the interface's own Go library, release 1.1.0.

The rows marked as stricter are those that the Go library accepts; docs/spec/plugin-helper.md section 10 says why this
project does not.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from dra_cdi import CdiDevice, CdiError, CdiSpec, ContainerEdits, DeviceNode, Hook, Mount, decode, encode

Json = dict[str, Any]
ENV = {"env": ["A=1"]}


def device(edits: Any = ENV, name: Any = "gpu0", **more: Any) -> Json:
    return {"name": name, "containerEdits": edits, **more}


def file(*devices: Json, **changes: Any) -> str:
    spec = {"cdiVersion": "1.1.0", "kind": "vendor.com/gpu", "devices": list(devices) or [device()]}
    return json.dumps({key: value for key, value in (spec | changes).items() if value is not ...})


def with_node(**fields: Any) -> str:
    return file(device({"deviceNodes": [{"path": "/dev/gpu0", **fields}]}))


def with_hook(**fields: Any) -> str:
    return file(device({"hooks": [{"hookName": "prestart", "path": "/bin/true", **fields}]}))


def with_rdt(**fields: Any) -> str:
    return file(device({"intelRdt": fields}))


def with_interfaces(*pairs: tuple[str, str]) -> str:
    return file(device({"netDevices": [{"hostInterfaceName": host, "name": name} for host, name in pairs]}))


ACCEPTED: dict[str, str] = {
    "the oldest version": file(cdiVersion="0.3.0"),
    "release 1.0.0": file(cdiVersion="1.0.0"),
    "release 1.1.0": file(),
    "a version with a v before it": file(cdiVersion="v0.6.0"),
    "a device node without anything but its path": with_node(),
    "each permission": with_node(permissions="rwm"),
    "a permission twice": with_node(permissions="rr"),
    "a block device": with_node(type="b", major=8, minor=0),
    "a character device": with_node(type="c", major=195, minor=255),
    "an unbuffered character device": with_node(type="u", major=1),
    "a FIFO": with_node(type="p"),
    "a negative number of a device": with_node(major=-1),
    "mode and owner of a device node": with_node(fileMode=0o660, uid=0, gid=2**32 - 1),
    "a device elsewhere on the host": with_node(hostPath="/dev/other"),
    "a mount with type and options": file(
        device({"mounts": [{"hostPath": "tmpfs", "containerPath": "/x", "type": "tmpfs", "options": ["size=1m"]}]})
    ),
    "a hook with all that it may have": with_hook(args=["true"], env=["A=1"], timeout=5),
    "a hook with a negative timeout": with_hook(timeout=-1),
    "empty Intel RDT, which changes something all the same": with_rdt(),
    "the root class of Intel RDT": with_rdt(closID="/", schemata=["L3:0=f"], enableMonitoring=True),
    "a long name of a class of Intel RDT": with_rdt(closID="x" * 4095),
    "two network interfaces": with_interfaces(("eth1", "a"), ("eth2", "b")),
    "groups": file(device({"additionalGids": [0, 44]})),
    "edits of the whole file": file(containerEdits=ENV),
    "annotations of file and device": file(device(annotations={"any key": "x"}), annotations={"a": "b"}),
    "fields that are null": file(containerEdits=None, annotations=None),
    "a device name that starts with a digit": file(device(name="0")),
    "a device name with everything between": file(device(name="gpu0:1_a.b-c")),
    "names of one letter": file(kind="v/c"),
    "a dot in the class": file(kind="vendor.com/gpu.large"),
    "an environment variable without a value": file(device({"env": ["A="]})),
    "YAML": "cdiVersion: '0.3.0'\nkind: v/c\ndevices:\n- name: a\n  containerEdits: {env: [A=1]}\n",
    "a comment before JSON, which is YAML": "# mine\n" + file(),
    "an octal number, which is YAML": with_node(fileMode=7).replace("7", "0660"),
    "a merged mapping of YAML": "cdiVersion: 0.3.0\nkind: v/c\ncontainerEdits: &e {env: [A=1]}\n"
    "devices:\n- name: a\n  containerEdits: {<<: *e, env: [B=1]}\n",
}

REFUSED: dict[str, tuple[str, str]] = {
    "nothing at all": ("", "Expected `object`, got `null`"),
    "a list": ("[]", "Expected `object`, got `array`"),
    "neither JSON nor YAML": ("{", "this is neither JSON nor YAML"),
    "no version": (file(cdiVersion=...), "missing required field `cdiVersion`"),
    "an empty version": (file(cdiVersion=""), "cdiVersion '' is not known: use one of 0.3.0"),
    "a version to come": (file(cdiVersion="9.0.0"), "cdiVersion '9.0.0' is not known"),
    "a version before the first": (file(cdiVersion="0.2.0"), "cdiVersion '0.2.0' is not known"),
    "no kind": (file(kind=...), "missing required field `kind`"),
    "a kind without a class": (file(kind="vendor.com"), "kind 'vendor.com' is not of the form vendor/class"),
    "a vendor that starts with a digit": (file(kind="3d.com/gpu"), "the vendor '3d.com' has to start with a letter"),
    "a class that starts with a digit": (file(kind="v/3d"), "the class '3d' has to start"),
    "a class that ends with a dash": (file(kind="v/c-"), "the class 'c-' has to start"),
    "a second slash in a kind": (file(kind="v/c/d"), "the class 'c/d' has to start"),
    "no devices": (file(devices=[]), "the file has no devices: add one"),
    "devices that are null": (file(devices=None), "missing required field `devices`"),
    "devices that are no list": (file(devices={"a": 1}), "devices: Expected `array`, got `object`"),
    "a device without a name": (file({"containerEdits": ENV}), "devices[0]: Object missing required field `name`"),
    "a name that starts with a dash": (file(device(name="-a")), "device '-a': device name '-a' is not valid"),
    "a name that ends with a colon": (file(device(name="a:")), "device name 'a:' is not valid"),
    "a name with a slash": (file(device(name="a/b")), "device name 'a/b' is not valid"),
    "a name with a letter that is not ASCII": (file(device(name="ä1")), "device name 'ä1' is not valid"),
    "two devices of one name": (file(device(), device()), "device 'gpu0' is described twice"),
    "a device without edits": (file({"name": "a"}), "device 'a': Object missing required field `containerEdits`"),
    "empty edits": (file(device({})), "device 'gpu0': the containerEdits are empty: add"),
    "edits with empty lists only": (
        file(device({"env": [], "mounts": []})),
        "device 'gpu0': the containerEdits are empty",
    ),
    "a variable without a value": (
        file(device({"env": ["A=1", "B"]})),
        "device 'gpu0', containerEdits: env entry 'B': use the form NAME=value",
    ),
    "a variable without a name": (file(containerEdits={"env": ["=x"]}), "containerEdits: env entry '=x'"),
    "a device node without a path": (with_node(path=""), "containerEdits.deviceNodes[0]: the path of a device node is"),
    "permissions that do not exist": (
        with_node(permissions="xyz"),
        "device 'gpu0', containerEdits.deviceNodes[0]: permissions 'xyz' of device node /dev/gpu0: use a combination",
    ),
    "permissions in words": (with_node(permissions="none"), "permissions 'none' of device node"),
    "a type that does not exist": (with_node(type="d"), "type 'd' of device node /dev/gpu0: use b, c, u or p"),
    "a number in quotes": (with_node(major="195"), "deviceNodes[0].major: Expected `int`, got `str`"),
    "a number that is too large": (with_node(major=2**63), "major"),
    "a negative mode": (with_node(fileMode=-1), "the fileMode of device node /dev/gpu0 is -1: use a number from 0"),
    "a fraction for a mode": (with_node(fileMode=1.5), "fileMode: Expected `int"),
    "a user beyond the last": (with_node(uid=2**32), "the uid of device node /dev/gpu0 is 4294967296"),
    "a device node that is null": (file(device({"deviceNodes": [None]})), "deviceNodes[0]: Expected `object`"),
    "a mount from nowhere": (
        file(device({"mounts": [{"hostPath": "", "containerPath": "/x"}]})),
        "containerEdits.mounts[0]: the hostPath of a mount is empty",
    ),
    "a mount to nowhere": (file(device({"mounts": [{"hostPath": "/x"}]})), "missing required field `containerPath`"),
    "a hook at an unknown moment": (with_hook(hookName="prestop"), "hookName 'prestop': use one of prestart, "),
    "a hook without a path": (with_hook(path=""), "the path of hook prestart is empty"),
    "a hook with a variable without a value": (with_hook(env=["A"]), "containerEdits.hooks[0]: env entry 'A'"),
    "a class of Intel RDT with a slash": (with_rdt(closID="a/b"), "closID 'a/b' of intelRdt: use a file name"),
    "a class of Intel RDT that is a folder": (with_rdt(closID=".."), "closID '..' of intelRdt"),
    "a class of Intel RDT over two lines": (with_rdt(closID="a\nb"), "of intelRdt"),
    "a class of Intel RDT that is too long": (with_rdt(closID="x" * 4096), "of intelRdt"),
    "a network interface without a name": (with_interfaces(("eth0", "")), "the name of a network device is empty"),
    "a network interface twice": (
        with_interfaces(("e", "a"), ("e", "b")),
        "hostInterfaceName of netDevices 'e' is given twice",
    ),
    "one name for two network interfaces": (
        with_interfaces(("d", "a"), ("e", "a")),
        "the name of netDevices 'a' is given twice",
    ),
    "a negative group": (file(device({"additionalGids": [-1]})), "an entry of additionalGids is -1"),
    "an unknown field of the file": (file(extra=1), "unknown field extra: remove it, or correct its name"),
    "an unknown field of a device node": (
        with_node(mode=7),
        "device 'gpu0', containerEdits.deviceNodes[0]: unknown field mode",
    ),
    "a key twice": (file()[:-1] + ', "kind": "a/b"}', "the key 'kind' appears twice"),
    "a key twice in YAML": ("kind: a/b\nkind: a/b\n", "the key 'kind' appears twice"),
    "a variable instead of a list": (file(device({"env": "A=1"})), "containerEdits.env: Expected `array`, got `str`"),
}

STRICTER: dict[str, tuple[str, str]] = {
    "a number for a name": (file(device(name=0)), "devices[0], name: Expected `str`, got `int`"),
    "a field in the wrong case": (file(CDIVersion="1.1.0"), "unknown field CDIVersion"),
    "a variable that ends a C string": (file(device({"env": ["A=\0"]})), "env entry 'A=\\x00'"),
    "a group that is null": (file(device({"additionalGids": [None]})), "additionalGids[0]: Expected `int`"),
    "more after the end": (file() + "{}", "this is neither JSON nor YAML"),
    "a first device that needs a newer version": (
        file(device({"deviceNodes": [{"path": "/x", "hostPath": "/y"}]}, "a"), device(), cdiVersion="0.4.0"),
        "cdiVersion 0.4.0 lacks what the file uses: declare 0.5.0 or newer",
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_runtimes_accept_is_read_and_survives_writing(case: str) -> None:
    spec = decode(ACCEPTED[case])
    assert decode(encode(spec)) == spec


@pytest.mark.parametrize("case", [*REFUSED, *STRICTER])
def test_what_runtimes_refuse_is_refused_with_device_field_and_remedy(case: str) -> None:
    text, message = (REFUSED | STRICTER)[case]
    with pytest.raises(CdiError) as caught:
        decode(text)
    assert message in str(caught.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(CdiError, match=r"this is not text: .* write the file as UTF-8"):
        decode(b"\xff\xfe\x00")


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000 + "}" * 100_000])
def test_a_file_nested_without_end_is_refused(text: str) -> None:
    with pytest.raises(CdiError, match="this is neither JSON nor YAML"):
        decode(text)


def test_a_value_that_breaks_a_rule_cannot_be_made() -> None:
    with pytest.raises(CdiError, match="permissions 'xyz'"):
        DeviceNode("/dev/a", permissions="xyz")
    with pytest.raises(CdiError, match="hostPath of a mount is empty"):
        Mount("", "/x")
    with pytest.raises(CdiError, match="hookName 'later'"):
        Hook("later", "/bin/true")
    with pytest.raises(CdiError, match="env entry 'A'"):
        ContainerEdits(env=("A",))
    with pytest.raises(CdiError, match="give a list of texts of the form NAME=value"):
        ContainerEdits(env="A=1")  # type: ignore[arg-type]
    with pytest.raises(CdiError, match="the containerEdits are empty"):
        CdiDevice("a", ContainerEdits())
    with pytest.raises(CdiError, match="not of the form vendor/class"):
        CdiSpec.of("vendor", [CdiDevice("a", ContainerEdits(env=("A=1",)))])


def test_a_value_of_the_wrong_type_is_not_written() -> None:
    edits = ContainerEdits(mounts=(Mount("/x", "/y", options="ro"),))  # type: ignore[arg-type]  # a user's mistake
    spec = CdiSpec.of("v/c", [CdiDevice("a", edits)])
    with pytest.raises(CdiError, match=r"device 'a', containerEdits.mounts\[0\].options: Expected `array`, got `str`"):
        encode(spec)
