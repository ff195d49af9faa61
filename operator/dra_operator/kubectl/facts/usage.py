"""How much is in use, by node, driver, class or namespace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from dra_operator.kubectl.answer import Fact

from .devices import DeviceFact


class UsageFact(Fact, frozen=True):
    """``used``: devices of which something is taken."""

    name: str
    devices: int
    used: int
    shared: int
    """Of those in use, the ones that several claims may share."""
    tainted: int
    free: int
    claims: int

    @property
    def share(self) -> float:
        """The used ones among all, from 0 to 1."""
        return self.used / self.devices if self.devices else 0.0


def usage_by_name(named: Iterable[tuple[str, DeviceFact]]) -> list[UsageFact]:
    """One for each name, those with most in use first."""
    groups: dict[str, list[DeviceFact]] = defaultdict(list)
    for name, device in named:
        groups[name].append(device)
    facts = [usage_of(name, devices) for name, devices in groups.items()]
    return sorted(facts, key=lambda fact: (-fact.share, -fact.used, fact.name))


def usage_of(name: str, devices: Sequence[DeviceFact]) -> UsageFact:
    """Of some devices together."""
    states = Counter(device.state for device in devices)
    claims = {holder.claim for device in devices for holder in device.holders}
    return UsageFact(
        name=name,
        devices=len(devices),
        used=states["taken"] + states["shared"],
        shared=states["shared"],
        tainted=states["tainted"],
        free=states["free"],
        claims=len(claims),
    )
