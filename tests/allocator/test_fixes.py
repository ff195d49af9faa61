"""The nearest fix promises nothing that it does not keep: following it removes the obstacle."""

from __future__ import annotations

import re
from typing import Any

from allocator_lab import Lab, claim, device, held, lab, pool, request
from dra_operator.allocator import Allocated, Refused, Rule
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

Json = dict[str, Any]
Published = list[tuple[int, tuple[str, ...], bool]]
TAINTS = ("bad", "worse")
PUBLISHED = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([(), (), ("bad",), ("worse",), TAINTS]), st.booleans()),
    min_size=1,
    max_size=5,
)


def problem(published: Published, tolerated: list[str], *, count: int, group: bool, in_use: bool, every: bool) -> Lab:
    """Devices with a root, taints, and whether they are in use; a request for some of them, or for all."""
    devices = [
        device(f"d{place}", root=root, extra={"taints": [{"key": key, "effect": "NoSchedule"} for key in keys]})
        for place, (root, keys, _) in enumerate(published)
    ]
    busy = [f"drv/p/d{place}" for place, (_, _, used) in enumerate(published) if used and in_use]
    tolerations = [{"key": key, "operator": "Exists"} for key in tolerated]
    wanted = {"allocationMode": "All"} if every else {"count": count}
    constraints = [{"matchAttribute": "drv/root"}] if group and not every else []
    asked = claim(request("r", tolerations=tolerations, **wanted), constraints=constraints)
    return lab(pool(*devices), [asked], usage=held(*busy))


@settings(max_examples=fewer(150), deadline=None)
@given(PUBLISHED, st.integers(1, 4), st.booleans(), st.booleans())
def test_doing_what_the_fix_says_is_enough(published: Published, count: int, group: bool, every: bool) -> None:
    def decided(tolerated: list[str], number: int, *, in_use: bool) -> Any:
        return problem(published, tolerated, count=number, group=group, in_use=in_use, every=every).decide()

    outcome = decided([], count, in_use=True)
    if not isinstance(outcome, Refused):
        assert isinstance(outcome, Allocated)
        return
    fix = outcome.refusal.fix
    if "would have to" in fix:
        return
    at_most = re.match(r"ask for at most (\d+) device", fix)
    number = int(at_most.group(1)) if at_most else count
    if number:
        again = decided(re.findall(r"key: (\w+)", fix), number, in_use="wait until" not in fix)
        assert isinstance(again, Allocated) or _is_next(outcome.refusal.rule, again.refusal.rule), fix


def _is_next(blamed: Rule, then: Rule) -> bool:
    """Constraints are looked at only when each request can be served alone: the fix of that comes first."""
    return then is Rule.CONSTRAINT and blamed is not Rule.CONSTRAINT
