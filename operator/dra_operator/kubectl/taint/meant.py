"""Which devices ``DRIVER[/POOL[/DEVICE]]`` means, as the selector of a DeviceTaintRule."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from dra_api.resource import DeviceTaintSelector

from dra_operator.allocator import DeviceId
from dra_operator.kubectl.answer import Problem


def selector_of(text: str, known: Sequence[DeviceId]) -> DeviceTaintSelector:
    """Names of pools may have slashes: what is known decides. Raises Problem if it means no device."""
    driver, _, rest = text.partition("/")
    readings = [DeviceTaintSelector(driver=driver)] if not rest else [DeviceTaintSelector(driver=driver, pool=rest)]
    pool, slash, device = rest.rpartition("/")
    if slash:
        readings.append(DeviceTaintSelector(driver=driver, pool=pool, device=device))
    for reading in readings:
        if any(is_meant(reading, device_id) for device_id in known):
            return reading
    words = {word for one in known for word in (one.driver, f"{one.driver}/{one.pool}", str(one))}
    similar = get_close_matches(text, sorted(words), 3)
    raise Problem(
        f"no device {text} is published or in use; write DRIVER, DRIVER/POOL or DRIVER/POOL/DEVICE"
        + (f"; similar: {', '.join(similar)}" if similar else "")
    )


def is_meant(selector: DeviceTaintSelector, device: DeviceId) -> bool:
    """Whether the selector selects the device."""
    wanted = (selector.driver, selector.pool, selector.device)
    return all(one in (None, its) for one, its in zip(wanted, device, strict=True))
