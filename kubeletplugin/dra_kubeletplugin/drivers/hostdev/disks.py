"""Disks: which of them the node uses, and by which device nodes a pod reaches them.

A pod could overwrite the data that the node has on a disk. sysfs names the disks with a mounted file system, with swap
space, and below volumes of LVM, RAID and encryption. It does not name all: an EFI partition mounted as FAT leaves no
trace there, and a boot loader is in a partition or an area that nothing mounts. So a pattern finds no partition of a
disk that the node uses; an entry may name one.

One disk has many device nodes: its own, those of its partitions and of volumes on it, and those that take commands for
it. A pod that has a disk may make partitions on it, and the node that the kernel makes for each belongs to that pod.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from dra_kubeletplugin.drivers.hostdev.facts import HostTree, Number

_NUMBER = re.compile(r"([bc]) ([0-9]+):([0-9]+)", re.ASCII)
_PATH_TO_DISK = re.compile(r"c[0-9]+(?=n[0-9]+$)", re.ASCII)
_COMMANDS_OF_NVME = re.compile(r"ng([0-9]+n[0-9]+)", re.ASCII)
_BOOT_AREA = re.compile(r"(mmcblk[0-9]+)(boot|gp)[0-9]+", re.ASCII)


def reached(number: Number, tree: HostTree) -> Iterator[Number]:
    """Yield the device nodes that lead to the hardware behind this one."""
    folder = tree.folder_of(number)
    if folder is None:
        return
    if number.type == "c" and tree.link(f"{folder}/subsystem") == "usb":
        # Who has a USB device as a whole can take it from its drivers in the kernel.
        for file in tree.glob(f"{folder}/**/dev"):
            yield from _number_of(file.rpartition("/")[0], tree)
    todo = [part for disk in _disks(number, folder, tree) for part in _parts(disk, tree)]
    seen = set(todo)
    while todo:
        part = todo.pop()
        yield from _number_of(part, tree)
        volumes = (tree.resolved(volume) for volume in tree.glob(f"{part}/holders/*"))
        new = {below for volume in volumes if volume for below in _parts(volume, tree)} - seen
        seen |= new
        todo += sorted(new)


def user_of_disk(own: Sequence[str], tree: HostTree, given: Collection[str], *, is_named: bool) -> str:
    """Return what uses a disk on the host to which one of these nodes leads, or an empty text.

    ``given`` are the nodes that claims have: what a pod has mounted is not the node's. A partition that is not named,
    but found by a pattern, belongs to whom the disk belongs.
    """
    parts: dict[str, None] = {}  # each once: a disk and its partitions lead to the same
    for match in filter(None, map(_NUMBER.fullmatch, own)):
        number = Number(match[1], int(match[2]), int(match[3]))
        folder = tree.folder_of(number)
        for disk in _disks(number, folder, tree) if folder else ():
            whole = disk if is_named else _whole(disk, tree)
            if whole not in parts:
                parts |= dict.fromkeys(_parts(whole, tree))
    swaps = [line.split()[0].rpartition("/")[2] for line in (tree.whole_text("/proc/swaps") or "").splitlines()[1:]]
    for part in parts:
        is_given = any(f"b {number}" in given for number in _number_of(part, tree))
        if not is_given and (user := _user(part, swaps, tree)):
            return user
    return ""


def _user(part: str, swaps: Collection[str], tree: HostTree) -> str:
    name = part.rpartition("/")[2]
    if name in swaps:
        return f"{name} has swap space"
    if volumes := tree.glob(f"{part}/holders/*"):
        return f"{volumes[0].rpartition('/')[2]} is on {name}"
    # XFS and ext4 have a folder for each mounted file system, btrfs one for each with its disks.
    for mounted in (*tree.glob(f"/sys/fs/*/{name}"), *tree.glob(f"/sys/fs/btrfs/*/devices/{name}")):
        return f"{name} has a mounted file system ({mounted.split('/')[3]})"
    if file := tree.text(f"{part}/loop/backing_file"):
        return f"{name} shows {file}"
    for number in _number_of(part, tree):
        is_of_zfs = tree.udev(f"b{number}").get("ID_FS_TYPE") == "zfs_member"
        if is_of_zfs and tree.glob("/proc/spl/kstat/zfs/*/state"):  # of the pools in use, whose disks the kernel hides
            return f"{name} is of ZFS"
    return ""


def _disks(number: Number, folder: str, tree: HostTree) -> Iterator[str]:
    """Yield the folders of the disks to which a node leads: its own, or those behind its commands to a controller."""
    if number.type == "b":
        yield folder
        return
    # Such as /dev/sg0 and /dev/bsg/0:0:0:0, /dev/nvme0, /dev/ng0n1.
    behind = ["device/block/*", "nvme*n*"]
    # The other nodes of /dev/bsg, such as ufs-bsg0, take commands for all that is behind an adapter.
    behind += {"usb": ["**/block/*"], "bsg": ["device/**/block/*"]}.get(tree.link(f"{folder}/subsystem") or "", [])
    names = [path.rpartition("/")[2] for pattern in behind for path in tree.glob(f"{folder}/{pattern}")]
    names += [f"nvme{match[1]}" for match in [_COMMANDS_OF_NVME.fullmatch(folder.rpartition("/")[2])] if match]
    for name in dict.fromkeys(names):
        # One of several paths to the disk nvme0n1 is called nvme0c1n1.
        if disk := tree.resolved(f"/sys/class/block/{_PATH_TO_DISK.sub('', name)}"):
            yield disk


def _parts(disk: str, tree: HostTree) -> list[str]:
    """Return the folder of a disk, and those of its partitions inside of it."""
    return [disk, *(file.rpartition("/")[0] for file in tree.glob(f"{disk}/*/partition"))]


def _whole(disk: str, tree: HostTree) -> str:
    """Return the folder of the disk that a partition, or an area for the boot loader, is a part of."""
    if tree.text(f"{disk}/partition"):
        return disk.rpartition("/")[0]
    area = _BOOT_AREA.fullmatch(disk.rpartition("/")[2])
    return (area and tree.resolved(f"/sys/class/block/{area[1]}")) or disk


def _number_of(folder: str, tree: HostTree) -> Iterator[Number]:
    """Yield the number of the device node of a folder in sysfs, if it has one."""
    major, _, minor = (tree.text(f"{folder}/dev") or "").partition(":")
    if minor:
        yield Number("b" if tree.link(f"{folder}/subsystem") == "block" else "c", int(major), int(minor))
