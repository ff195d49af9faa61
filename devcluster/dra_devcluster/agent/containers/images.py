"""What a container runs: its own command, or a stand-in for what its image would run.

Images are not pulled; a command runs with the programs of the host, and one of the image of this project with the
programs of this installation as well. Without a command:

* images that hold a shell and no entrypoint (busybox, alpine, debian, ubuntu, python, ...) run ``args``;
* without ``args``, any image idles until it is stopped, and so does ``pause`` as the only argument;
* ``args`` for another image would go to an entrypoint that is not known here, which is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.spec.environment import expand
from dra_devcluster.agent.spec.pod import RunContainer

IDLE = ("sleep", "2147483647")
_NO_ENTRYPOINT = {"alpine", "bash", "busybox", "centos", "debian", "fedora", "python", "ubi-minimal", "ubuntu"}
_OWN_IMAGE = "kopf-dra"


def search_path_of(image: str, host: str) -> str:
    """Where the programs of a container are looked for; ``host`` is the search path of the host."""
    return f"{host}:{Path(sys.executable).parent}" if _short_name(image) == _OWN_IMAGE else host


def command_of(container: RunContainer, variables: Mapping[str, str]) -> list[str]:
    """The program and its arguments. Raises ContainerError(RunContainerError)."""
    command = [expand(word, variables) for word in container.command or ()]
    arguments = [expand(word, variables) for word in container.args or ()]
    if command:
        return command + arguments
    if not arguments or arguments == ["pause"]:
        return list(IDLE)
    if _short_name(container.image) in _NO_ENTRYPOINT:
        return arguments
    raise ContainerError(
        "RunContainerError",
        f"the entrypoint of image {container.image!r} is not known here: give the container a command",
    )


def _short_name(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]
