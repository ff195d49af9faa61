"""A gRPC server on a unix socket, from before the socket appears until after it is gone.

The server binds a hidden name first and the socket is moved into place when it is served: the kubelet,
which watches the folder, never meets a socket that nobody listens on. It also keeps grpc from unlinking
*by path* when it stops, which would remove the socket that a successor has put there meanwhile; here a
socket is removed only while it still is ours (PH-02).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from .errors import ServerDied, StartError
from .interceptor import Interceptor

_LOOK_SECONDS = 1.0


class SocketServer:
    """Serves on ``path``; ``register`` adds the services. ``died`` is told when it ends by itself."""

    def __init__(
        self,
        path: Path,
        register: Callable[[grpc.aio.Server], None],
        interceptors: Sequence[Interceptor],
        died: Callable[[ServerDied], None],
    ) -> None:
        self.path = path
        self._register = register
        self._interceptors = interceptors
        self._died = died
        self._server: grpc.aio.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises StartError naming the path when that is not possible."""
        _make_room(self.path)
        hidden = self.path.with_name(f".{secrets.token_hex(3)}")
        server = grpc.aio.server(interceptors=self._interceptors)
        self._register(server)
        try:
            server.add_insecure_port(f"unix:{hidden}")
            await server.start()
            self._server = server
            hidden.rename(self.path)
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise StartError(f"cannot serve on the socket {self.path}: {error}; is its folder writable?") from error
        self._identity = _identity(self.path)
        self._watch = asyncio.create_task(self._look(server), name=f"watch {self.path}")

    async def stop(self) -> None:
        """Cancel running calls, stop listening, remove the socket. Harmless when not started."""
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._identity and _identity(self.path) == self._identity:
            self.path.unlink(missing_ok=True)
        self._identity = None
        if self._server:
            server, self._server = self._server, None
            await server.stop(None)

    async def _look(self, server: grpc.aio.Server) -> None:
        """Report a server that ended, or whose socket somebody removed or replaced: nobody can reach it any more."""
        while await server.wait_for_termination(timeout=_LOOK_SECONDS):
            if _identity(self.path) != self._identity:
                self._died(ServerDied(f"the socket {self.path} was removed or replaced: restart the plugin"))
                return
        self._died(ServerDied(f"the gRPC server on {self.path} ended unexpectedly: restart the plugin"))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_room(path: Path) -> None:
    """Remove a socket left by a killed process; anything else in its place is not ours to remove."""
    if not path.parent.is_dir():
        raise StartError(f"the folder {path.parent} for the socket {path.name} does not exist: create or mount it")
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise StartError(f"{path} exists and is no socket: remove it")
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StartError(f"cannot remove the stale socket {path}: {error}") from error
