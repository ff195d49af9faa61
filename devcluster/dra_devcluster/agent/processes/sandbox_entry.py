"""Runs a program with mounts or a network of its own: ``python sandbox_entry.py PLAN PROGRAM ARGUMENT...``.

PLAN is JSON with ``cwd``, the folder to start in. With ``"terminal": true`` the keys of the terminal at the standard
input send signals. It may have one of these:

* ``"own_network": FD`` for a new network with nothing but loopback. No program runs in it: this process keeps it, and
  answers each byte that comes through the unix socket FD with a TCP socket of it. The other side may bind or connect
  that. It ends with that connection;
* ``"network": PID`` and ``"root": EMPTY_FOLDER, "mounts": [[SOURCE, TARGET, READ_ONLY], ...]``, one or both, for the
  network of a process that was started so, and for mounts;
* ``"join": PID`` for a program beside one that was started with the second plan.

Root may have namespaces, and every other user may have them inside a user namespace of its own. The program sees
the files of the machine, with the sources bound over the targets. A target that does not exist cannot be made on the
machine. So its nearest parent is replaced by an empty file system in memory. Everything in the parent is bound there
again, and new names can be made.

This file is run as a program and imports nothing but the standard library, since it starts with every container.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_USER, _MOUNTS, _NETWORK = "user", "mnt", "net"
_FLAGS = {_USER: 0x10000000, _MOUNTS: 0x00020000, _NETWORK: 0x40000000}
_READ_ONLY_FLAG, _REMOUNT_FLAG, _BIND_FLAG, _RECURSIVE_FLAG, _PRIVATE_FLAG = 0x1, 0x20, 0x1000, 0x4000, 0x40000
# What a file system forbids (statvfs) has to be repeated when it is mounted again: nosuid, nodev, noexec, ...
_KEPT = {0x2: 0x2, 0x4: 0x4, 0x8: 0x8, 0x400: 0x400, 0x800: 0x800, 0x1000: 0x200000}
_DIE_WITH_PARENT_CODE, _KILL_NUMBER = 1, 9
# socket(2) and the request that sets the flags of a network interface (netdevice(7)).
_INTERNET_CODE, _DATAGRAMS_CODE, _SET_FLAGS_CODE, _UP_FLAG, _NAME_BYTES, _REQUEST_BYTES = 2, 2, 0x8914, 1, 16, 40
CANNOT_RUN_CODE = 128
_PAUSE_SECONDS = 0.01


def main(arguments: Sequence[str]) -> None:
    """Replace this process by the program; ends with ``CANNOT_RUN_CODE`` and a line on stderr if that fails."""
    plan, argv = json.loads(arguments[0]), list(arguments[1:])
    try:
        if plan.get("terminal"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in (signal.SIGINT, signal.SIGQUIT):  # the agent may run in the background of a shell script,
                signal.signal(number, signal.SIG_DFL)  # with these ignored, and programs would inherit that
        _apply(plan)
        os.chdir(plan["cwd"])
        _libc.prctl(_DIE_WITH_PARENT_CODE, _KILL_NUMBER, 0, 0, 0)
    except OSError as error:
        _end(f"cannot set up the container: {error}")
    if "own_network" in plan:
        _give_sockets(plan["own_network"])
        return
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        _end(f'exec: "{argv[0]}": executable file not found in $PATH')
    except OSError as error:
        _end(f'exec: "{argv[0]}": {error.strerror}')


def _apply(plan: Mapping[str, Any]) -> None:
    if "join" in plan:
        _join(plan["join"])
    elif "own_network" in plan:
        _isolate(_NETWORK)
        _raise_loopback()
    else:
        if "network" in plan:
            _enter(plan["network"], (_USER, _NETWORK))
        if "mounts" in plan:
            _isolate(_MOUNTS)
            _mount("none", "/", "", _RECURSIVE_FLAG | _PRIVATE_FLAG)
            _build(plan["root"], plan["mounts"])
            os.chroot(plan["root"])


def _give_sockets(control: int) -> None:
    with socket.socket(fileno=control) as connection:
        while connection.recv(1):
            with socket.socket() as fresh:
                socket.send_fds(connection, [b"s"], [fresh.fileno()])


def _end(message: str) -> None:
    print(message, file=sys.stderr)
    sys.exit(CANNOT_RUN_CODE)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(_libc.mount(*arguments), f"mount {source} at {target}")


def _isolate(kind: str) -> None:
    """A new namespace, and if we may not have that alone, inside a user namespace in which we are who we are."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_FLAGS[kind]) != 0:
        _check(_libc.unshare(_FLAGS[kind] | _FLAGS[_USER]), "unshare")
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as mapping:
                mapping.write(text)


def _raise_loopback() -> None:
    """Turn on the only interface that a new network has."""
    handle = _libc.socket(_INTERNET_CODE, _DATAGRAMS_CODE, 0)
    request = b"lo".ljust(_NAME_BYTES, b"\0") + _UP_FLAG.to_bytes(2, sys.byteorder)
    _check(_libc.ioctl(handle, _SET_FLAGS_CODE, request.ljust(_REQUEST_BYTES, b"\0")), "loopback")
    os.close(handle)


def _join(pid: int) -> None:
    """Enter the namespaces and the root of a process, once it has them and runs its program."""
    while os.fsencode(__file__) in _command_line(pid):
        time.sleep(_PAUSE_SECONDS)
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    _enter(pid, (_USER, _MOUNTS, _NETWORK))
    os.fchdir(root)
    os.chroot(".")
    os.close(root)


def _enter(pid: int, kinds: Sequence[str]) -> None:
    """Enter those namespaces of a process that are not ours already."""
    other = [kind for kind in kinds if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")]
    # All are opened first: what is theirs cannot be seen any more from another mount namespace.
    for namespace, kind in [(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), kind) for kind in other]:
        _check(_libc.setns(namespace, _FLAGS[kind]), "setns")
        os.close(namespace)


def _command_line(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")


def _build(root: str, mounts: Sequence[tuple[str, str, bool]]) -> None:
    _mount("/", root, "", _BIND_FLAG | _RECURSIVE_FLAG)
    bound: list[str] = []
    mirrors: set[int] = set()
    for source, place, read_only in sorted(mounts, key=lambda mount: mount[1]):
        target = os.path.realpath(place)
        if not os.path.lexists(root + target):
            _make(root, target, bound, mirrors, directory=os.path.isdir(source))
        _mount(source, root + target, "", _BIND_FLAG | _RECURSIVE_FLAG)
        if read_only:
            allowed = os.statvfs(root + target).f_flag
            kept = sum(flag for bit, flag in _KEPT.items() if allowed & bit)
            _mount("none", root + target, "", _BIND_FLAG | _REMOUNT_FLAG | _READ_ONLY_FLAG | kept)
        bound.append(target)


def _make(root: str, target: str, bound: Sequence[str], mirrors: set[int], *, directory: bool) -> None:
    """Make a target in a volume that is bound already, or in a mirror, but never in a folder of the machine.

    ``mirrors`` are the device numbers of the mirrors: a folder of the machine that is bound in one has another number.
    """
    parent = os.path.dirname(target)
    while not os.path.lexists(root + parent):
        parent = os.path.dirname(parent)
    in_volume = any(parent == volume or parent.startswith(volume + "/") for volume in bound)
    if not in_volume and os.stat(root + parent).st_dev not in mirrors:
        _mirror(root + parent)
        mirrors.add(os.stat(root + parent).st_dev)
    os.makedirs(root + (target if directory else os.path.dirname(target)), exist_ok=True)
    if not directory:
        open(root + target, "a").close()


def _mirror(folder: str) -> None:
    """Put an empty file system over a folder, and what the folder has into it."""
    original = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    mode = stat.S_IMODE(os.fstat(original).st_mode)
    _mount("tmpfs", folder, "tmpfs", 0, f"mode={mode:o}")
    for name in os.listdir(original):
        old, new = f"/proc/self/fd/{original}/{name}", f"{folder}/{name}"
        kind = os.lstat(old).st_mode
        if stat.S_ISLNK(kind):
            os.symlink(os.readlink(old), new)
            continue
        if stat.S_ISDIR(kind):
            os.mkdir(new)
        else:
            open(new, "x").close()
        _mount(old, new, "", _BIND_FLAG | _RECURSIVE_FLAG)
    os.close(original)


if __name__ == "__main__":
    main(sys.argv[1:])
