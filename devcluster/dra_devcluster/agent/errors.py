"""The errors of a node.

::

    AgentError
    ├── CheckpointCorrupted    the claim checkpoint cannot be trusted: the agent does not start
    ├── ClaimError             a pod's claims cannot be prepared, unprepared or found; tried again later
    ├── RegistrationError      a plugin's registration is refused or failed
    ├── HealthStreamEnded      a plugin reports no health any more; tried again later
    │   └── HealthNotServed    it has no such service
    ├── NetworkError           a pod cannot have a network of its own; it shares that of the machine
    ├── VolumeError            a volume of a pod cannot be provided; tried again later
    └── ContainerError         a container cannot be started; ``reason`` is what the pod's status shows
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of all errors of the node agent."""


class CheckpointCorrupted(AgentError):
    """The checkpoint file is damaged; a start without it could leave devices prepared forever (KM-11)."""


class ClaimError(AgentError):
    """The text is shown to users in pod events: short, without the pod's name (kubelet-manager.md section 6)."""


class RegistrationError(AgentError):
    """A plugin cannot be registered (KM-04, KM-06, KM-07)."""


class HealthStreamEnded(AgentError):
    """The stream of health reports of a plugin has ended, or never began (KM-22)."""


class HealthNotServed(HealthStreamEnded):
    """The plugin answers that it has no such health service."""


class NetworkError(AgentError):
    """Why this machine lets a pod have no network of its own."""


class VolumeError(AgentError):
    """The text is shown to users in pod events, and names the volume."""


class ContainerError(AgentError):
    """A container cannot start; ``reason`` becomes the reason of its waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
