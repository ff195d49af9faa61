"""The end of a server that listens: no connection is lost between two iterations of the event loop."""

from __future__ import annotations

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Accept no more connections.

    asyncio accepts a connection in one iteration and makes its transport in the next. If the server is closed in
    between, that fails without a word: the socket stays open, and the client waits, until the garbage is collected.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    try:
        await asyncio.sleep(0)
    finally:
        server.close()
