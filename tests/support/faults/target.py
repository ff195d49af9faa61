"""Which requests a fault hits."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from api_call import ApiCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """All requests, unless narrowed. Resource, name and client are patterns: ``resourceclaims*`` has the status too."""

    verbs: tuple[str, ...] = ()
    resource: str = "*"
    name: str = "*"
    client: str = "*"
    group: str = "*"
    version: str = "*"

    def includes(self, client: str, call: ApiCall) -> bool:
        """Whether this client's request is meant."""
        return (
            (not self.verbs or call.verb in self.verbs)
            and fnmatchcase(call.resource, self.resource)
            and fnmatchcase(call.name, self.name)
            and fnmatchcase(client, self.client)
            and fnmatchcase(call.group, self.group)
            and fnmatchcase(call.version, self.version)
        )
