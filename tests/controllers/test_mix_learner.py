"""What pods ask for is told to the allocator once for each pod, and found again after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim
from dra_kube import PODS, RESOURCE_CLAIMS
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.allocator.ordering.mix import COUNTED_CLASSES
from dra_operator.cache import Cluster
from dra_operator.controllers.scheduling.mix import (
    LARGEST_WEIGHT,
    LISTED_ENTRIES,
    WRITTEN_BYTES,
    MixError,
    MixLearner,
    MixMemory,
    read_mix,
)
from objects import Make


def claim(name: str, kind: str) -> ResourceClaim:
    selector = {"cel": {"expression": f'device.attributes["d"].kind == "{kind}"'}}
    exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1, "selectors": [selector]}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return convert(ResourceClaim, {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec})


def pod(name: str, node: str | None = None, cpu: str = "0") -> Pod:
    entries = [{"name": "device", "resourceClaimName": name}]
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    spec: dict[str, Any] = {"containers": containers, "resourceClaims": entries, "schedulerName": "dra-scheduler"}
    spec |= {"nodeName": node} if node else {}
    return convert(Pod, {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec, "status": {}})


def cluster() -> Cluster:
    features = Features()
    return Cluster(Inventory(features, language=CelSelectors(features)))


def learner(
    of: Cluster, order: str = "least-loss", memory: MixMemory | None = None, class_: str = "any"
) -> tuple[MixLearner, Allocator]:
    of.inventory.put_class(convert(DeviceClass, {"metadata": {"name": class_}, "spec": {}}))
    allocator = Allocator(of.inventory, new_share_id=str, order=order)
    return MixLearner(of, allocator, memory), allocator


def kinds(allocator: Allocator) -> dict[str, int]:
    return {it.alternative.expressions[0].split('"')[3]: it.weight for it in allocator.learned.mix.classes}


def test_a_pod_that_is_tried_again_counts_once() -> None:
    made, allocator = learner(cluster())
    for _ in range(30):
        made.see(pod("a"), [claim("a", "large")])
    for number in range(19):
        made.see(pod(f"b{number}"), [claim("b", "small")])
    assert kinds(allocator) == {"small": 1024 * 19 // 20, "large": 1024 // 20}


def cpu(allocator: Allocator) -> dict[str, int]:
    return {it.alternative.expressions[0].split('"')[3]: it.milli_cpu for it in allocator.learned.mix.classes}


def test_the_cpu_of_pods_is_learned_in_the_mean_and_changes_the_mix() -> None:
    """One pod counts with 256 cores at most, and so moves the mean of a hundred by 2.6 cores at most."""
    made, allocator = learner(cluster())
    for number in range(20):
        made.see(pod(f"a{number}", cpu="2" if number % 2 else "4"), [claim("a", "large")])
    assert cpu(allocator) == {"large": 3000}
    for number in range(10):
        made.see(pod(f"later{number}", cpu="5"), [claim("a", "large")])
    for number in range(69):
        made.see(pod(f"b{number}", cpu="3"), [claim("a", "large")])
    made.see(pod("huge", cpu="1000000"), [claim("a", "large")])
    assert cpu(allocator) == {"large": pytest.approx((89 * 3000 + 10 * 5000 + 256_000) // 100, abs=50)}


def sized(cores: int, version: int) -> Node:
    meta = {"name": f"n{cores}", "uid": f"n{cores}", "resourceVersion": str(version)}
    return convert(Node, {"metadata": meta, "status": {"allocatable": {"cpu": str(cores)}}})


def test_a_pod_for_which_every_node_is_too_small_counts_when_there_is_a_larger_one() -> None:
    seen = cluster()
    seen.apply(sized(8, 1))
    seen.apply(sized(16, 1))
    made, allocator = learner(seen)
    made.see(pod("fits", cpu="16"), [claim("a", "large")])
    for number in range(30):
        made.see(pod(f"huge{number}", cpu="16001m"), [claim("b", "huge")])
    assert [it.weight for it in allocator.learned.counted] == [1]
    seen.apply(sized(32, 1))
    made.see(pod("huge0", cpu="16001m"), [claim("b", "huge")])
    assert [it.milli_cpu for it in allocator.learned.counted] == [16_000, 16_001]


def test_a_kind_that_is_new_is_in_the_mix_when_it_is_looked_at_next() -> None:
    """It would be a fifth of the mix only much later, and not be spared until then."""
    made, allocator = learner(cluster())
    for number in range(98):
        made.see(pod(f"a{number}"), [claim("a", "large")])
    assert kinds(allocator) == {"large": 1024}
    for number in range(2):
        made.see(pod(f"b{number}"), [claim("b", "rare")])
    assert kinds(allocator) == {"large": 1024 * 98 // 100, "rare": 1024 * 2 // 100}


def test_new_kinds_change_no_mix_that_has_more_kinds_than_are_looked_at() -> None:
    made, allocator = learner(cluster())
    for number in range(80):
        made.see(pod(f"a{number}"), [claim(f"a{number % 20}", f"k{number % 20}")])
    before = allocator.learned.mix
    for number in range(20):
        made.see(pod(f"b{number}"), [claim("b", f"k{number or 1}")])
    assert allocator.learned.mix is before  # without k0, which is now asked for less often than k16


def test_odd_pods_of_one_tenant_keep_no_new_kind_out() -> None:
    """Sixteen kinds of one pod each are not kinds that a mix could be full of."""
    made, allocator = learner(cluster())
    for number in range(300):
        made.see(pod(f"a{number}"), [claim("a", f"odd{number}" if number < 16 else "large")])
    for number in range(600):
        made.see(pod(f"b{number}"), [claim("b", "large" if number % 20 else "rare")])
    assert kinds(allocator)["rare"] == 25  # 15 of 600, when the mix was taken


def test_as_many_kinds_as_are_counted_keep_no_newcomer_out() -> None:
    """Each of them has come more often than the newcomer, when that comes first."""
    made, allocator = learner(cluster())
    for number in range(4 * COUNTED_CLASSES):
        made.see(pod(f"a{number}"), [claim("a", f"k{number % COUNTED_CLASSES}")])
    for number in range(300):
        made.see(pod(f"b{number}"), [claim("b", "newcomer")])
    assert len(allocator.learned._counts) == COUNTED_CLASSES
    assert allocator.learned.counted[0].weight == 300
    assert max(kinds(allocator), key=kinds(allocator).__getitem__) == "newcomer"


def test_a_kind_that_was_too_seldom_for_the_mix_is_new_when_it_no_longer_is() -> None:
    made, allocator = learner(cluster())
    for number in range(1500):
        made.see(pod(f"a{number}"), [claim("a", "large" if number % 8 else "small")])
    made.see(pod("odd"), [claim("odd", "rare")])
    for number in range(299):
        made.see(pod(f"b{number}"), [claim("b", "small")])
    assert kinds(allocator).keys() == {"large", "small"}
    for number in range(300):
        made.see(pod(f"c{number}"), [claim("c", "large" if number % 10 else "rare")])
    assert "rare" in kinds(allocator)


def test_a_process_that_begins_counts_the_pods_that_have_devices() -> None:
    seen = cluster()
    for number in range(15):
        seen.apply(pod(f"p{number}", "n1"))
        seen.apply(claim(f"p{number}", "placed"))
    seen.apply(pod("waits"))
    seen.apply(claim("waits", "waiting"))
    made, allocator = learner(seen)
    for number in range(5):
        made.see(pod(f"new{number}"), [claim("new", "new")])
    assert kinds(allocator) == {"placed": 1024 * 15 // 20, "new": 1024 * 5 // 20}


@pytest.mark.parametrize("asks", [True, False])
async def test_only_where_an_order_or_a_strategy_asks_it_is_learned(world: World, *, asks: bool) -> None:
    world.furnish(1, 2)
    world.api.add(RESOURCE_CLAIMS, Make.claim("claim"))
    world.api.add(PODS, Make.pod("pod", claims=[{"name": "gpu", "resourceClaimName": "claim"}]))
    world.start()
    world.allocator.looks_at_mix = asks
    async with world.running():
        await world.quiet()
    assert bool(world.allocator.learned.counted) is asks


LARGE = """
- weight: 3
  exactly:
    deviceClassName: any
    selectors: [{cel: {expression: 'device.attributes["d"].kind == "large"'}}]
"""
SMALL = """
- weight: 1
  exactly:
    deviceClassName: any
    count: 2
    tolerations: [{key: slow, operator: Exists}]
    capacity: {requests: {memory: 10Gi}}
    selectors: [{cel: {expression: 'device.attributes["d"].kind == "small"'}}]
  cpu: 1500m
"""


def test_a_mix_that_is_given_is_not_learned() -> None:
    made, allocator = learner(cluster(), memory=MixMemory(read_mix(LARGE + SMALL)))
    for number in range(40):
        made.see(pod(f"a{number}"), [claim("a", "other")])
    assert kinds(allocator) == {"large": 768, "small": 256}


def test_a_mix_that_is_given_counts_as_soon_as_its_class_exists() -> None:
    seen = cluster()
    made, allocator = learner(seen, memory=MixMemory(read_mix(LARGE)), class_="another")
    made.see(pod("a"), [])
    assert kinds(allocator) == {}
    seen.inventory.put_class(convert(DeviceClass, {"metadata": {"name": "any"}, "spec": {}}))
    made.see(pod("b"), [])
    assert kinds(allocator) == {"large": 1024}


def test_the_next_process_goes_on_where_the_last_one_ended() -> None:
    """It does not count the pods that have devices again; what was asked for keeps its age."""
    memory = MixMemory()
    made, _ = learner(cluster(), memory=memory)
    for number in range(300):
        made.see(pod(f"a{number}"), [claim("a", "large" if number % 3 else "small")])
    seen = cluster()
    seen.apply(pod("placed", "n1"))
    seen.apply(claim("placed", "placed"))
    after = MixMemory()
    after.recall(memory.text)
    made, allocator = learner(seen, memory=after)
    made.see(pod("b"), [claim("b", "large")])
    assert kinds(allocator) == {"large": 682, "small": 341}
    for number in range(300):
        made.see(pod(f"c{number}"), [claim("c", "new")])
    assert kinds(allocator) == {"new": 510, "large": 343, "small": 170}


@pytest.mark.parametrize("text", ["", "]", "[]", "{}", '[{"weight": 1}]', '[{"weight": 1, "exactly": {"later": 1}}]'])
def test_a_mix_that_cannot_be_read_is_forgotten(text: str) -> None:
    memory = MixMemory()
    memory.recall(text)
    made, allocator = learner(cluster(), memory=memory)
    made.see(pod("a"), [claim("a", "large")])
    assert kinds(allocator) == {"large": 1024}


def test_all_that_counts_of_a_request_survives() -> None:
    memory, again = MixMemory(read_mix(SMALL)), MixMemory()
    learned = []
    for it in (memory, again):
        made, allocator = learner(cluster(), memory=it)
        made.see(pod("a"), [claim("a", "large")] if it is memory else [])
        (known,) = allocator.learned.mix.classes
        learned.append((known.alternative.offer, known.alternative.count, known.weight, known.milli_cpu))
        again.recall(memory.text)
    assert learned[0] == learned[1]
    assert learned[0][-1] == 1500


def test_the_text_is_limited() -> None:
    memory = MixMemory()
    made, _ = learner(cluster(), memory=memory)
    for number in range(300):
        made.see(pod(f"a{number}"), [claim("a", f"{number % 16}" + 4000 * "x")])
    assert WRITTEN_BYTES - 5000 < len(memory.text) <= WRITTEN_BYTES
    assert len(read_mix(memory.text)) == 7


def test_a_request_that_is_too_large_to_be_kept_costs_no_other_one() -> None:
    """It is the commonest one: the counts of others are not lost for it."""
    memory = MixMemory()
    made, _ = learner(cluster(), memory=memory)
    for number in range(20):
        size = WRITTEN_BYTES if number < 15 else 1
        made.see(pod(f"a{number}"), [claim("a", size * "x")])
    (kept,) = read_mix(memory.text)
    assert kept.weight == 5


PATTERN = r'"(?:\\pL\\pL\\pL){300}N"'


@pytest.mark.parametrize("kind", [f'x" || device.driver.matches({PATTERN}) || "a" == "b', "\U0001f600"])
def test_a_request_that_cannot_be_read_again_costs_no_other_one(kind: str) -> None:
    """Such as a pattern that another API server admits, and that is refused here; or what JSON says in two halves."""
    memory = MixMemory()
    made, _ = learner(cluster(), memory=memory)
    made.see(pod("a"), [claim("a", kind)])
    for number in range(19):
        made.see(pod(f"b{number}"), [claim("b", "small")])
    (kept,) = read_mix(memory.text)
    assert kept.weight == 19
    assert [it.weight for it in made.known()] == [19]


def test_nothing_is_written_if_nothing_can_be_kept() -> None:
    memory = MixMemory()
    made, _ = learner(cluster(), memory=memory)
    made.see(pod("a"), [claim("a", WRITTEN_BYTES * "x")])
    assert memory.text == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- [", "not YAML"),
        ("weight: 1", "expected a list of 1 to 256 entries"),
        (LISTED_ENTRIES * LARGE + SMALL, "expected a list of 1 to 256 entries"),
        (LARGE + "- {weight: 1}", "entry 2: expected the fields weight, exactly and perhaps cpu"),
        ("- {weight: 0, exactly: {deviceClassName: any}}", "entry 1, weight: expected a whole number from 1"),
        (f"- {{weight: {LARGEST_WEIGHT + 1}, exactly: {{deviceClassName: any}}}}", "entry 1, weight"),
        ("- {weight: true, exactly: {deviceClassName: any}}", "entry 1, weight"),
        ("- {weight: 1, exactly: {count: 1}}", "deviceClassName: Required value"),
        ("- {weight: 1, exactly: {deviceClassName: any, selectors: [{cel: {expression: 'x +'}}]}}", "selectors"),
        ("- {weight: 1, exactly: {deviceClassName: 5}}", "entry 1: "),
        ("- {weight: 1, exactly: {deviceClassName: any, null: 1}}", "entry 1: "),
        ("- {weight: 1, exactly: {deviceClassName: any}, cpu: much}", "entry 1, cpu: "),
        ("- {weight: 1, exactly: {deviceClassName: any}, cpu: -1}", "entry 1, cpu: expected a quantity from 0 to 1000"),
        ("- {weight: 1, exactly: {deviceClassName: any}, cpu: 1001}", "entry 1, cpu: expected a quantity from 0"),
    ],
)
def test_a_mix_that_is_wrong_is_refused(text: str, said: str) -> None:
    with pytest.raises(MixError, match=said):
        read_mix(text)
