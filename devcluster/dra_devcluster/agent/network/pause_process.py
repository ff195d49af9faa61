"""Gives away sockets of the network it runs in: ``python pause_process.py FD``.

For each byte that comes through the unix socket FD it answers with a TCP socket, which the other side may bind or
connect. It ends with that connection. As long as it runs, containers can join its network.

This file is run as a program and imports nothing but the standard library, since it starts with every such pod.
"""

from __future__ import annotations

import socket
import sys


def main(control: int) -> None:
    """Serve until the other side has gone."""
    with socket.socket(fileno=control) as connection:
        while connection.recv(1):
            with socket.socket() as fresh:
                socket.send_fds(connection, [b"s"], [fresh.fileno()])


if __name__ == "__main__":
    main(int(sys.argv[1]))
