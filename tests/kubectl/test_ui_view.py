"""What the page of ``kubectl dra ui`` is told: groups, filters, orders, pages, history, and limits for a bad tenant."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_ledger.entries import STATES as LEDGER_STATES
from dra_operator.kubectl.arguments import given_options
from dra_operator.kubectl.cli import parser
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.ui import lines, view
from dra_operator.kubectl.ui.lines import FACETS, NONE, Commands, NodeQuestion, Wish
from dra_operator.kubectl.ui.server import PAGE
from dra_operator.kubectl.ui.view import History, View

NOW = datetime(2030, 1, 2, tzinfo=UTC)
DRIVER = "gpu.example.com"
LONG = "a" * 253
MARKUP = "<script>alert(1)</script>"
Json = dict[str, Any]
KINDS: dict[str, type[Object]] = {
    "Node": Node,
    "Pod": Pod,
    "ResourceSlice": ResourceSlice,
    "ResourceClaim": ResourceClaim,
    "DeviceClass": DeviceClass,
}


def view_of(objects: list[Json], before: View | None = None, **options: Any) -> View:
    made = [convert(KINDS[it["kind"]], it) for it in objects]
    settings = Settings.of(parser(["ui"]).parse_args(["ui"]))
    return View(Observed(made, NOW, **options), settings, Commands(()), live=True, before=before)


def node(name: str, devices: int = 2, *, labels: Json | None = None, model: str = "a100", **spec: Any) -> list[Json]:
    attributes = {"model": {"string": model}}
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": f"gpu-{number}", "attributes": attributes} for number in range(devices)]
    slice_ = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": listed}
    return [
        {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec},
        {"kind": "ResourceSlice", "metadata": {"name": f"{name}-slice"}, "spec": slice_},
    ]


def claim(name: str, *given: tuple[str, str], namespace: str = "ml") -> Json:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]
    meta = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"}
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": device} for pool, device in given]
    status = {"allocation": {"devices": {"results": results}}} if given else {}
    return {"kind": "ResourceClaim", "metadata": meta, "spec": {"devices": {"requests": requests}}, "status": status}


def pod(name: str, message: str = "", minutes: int = 5) -> Json:
    created = (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    uses = [{"name": "r", "resourceClaimName": name}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": created},
        "spec": {"schedulerName": "dra-scheduler", "containers": [{"name": "c"}], "resourceClaims": uses},
        "status": {"phase": "Pending", "conditions": said},
    }


def device_class(name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"') -> Json:
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def asked(**facets: str) -> NodeQuestion:
    wanted = tuple(facets.pop(facet, "") for facet in FACETS)
    return NodeQuestion(wanted=wanted, **facets)


FLEET = [
    device_class(),
    device_class("h100", f'device.attributes["{DRIVER}"].model == "h100"'),
    *node("n-10", labels={"topology.kubernetes.io/zone": "b", "example.com/rack": "r1"}),
    *node("n-2", labels={"topology.kubernetes.io/zone": "a"}, model="h100"),
    *node("n-3", labels={"topology.kubernetes.io/zone": "a"}, unschedulable=True),
    claim("one", ("n-2", "gpu-0")),
    claim("two", ("n-10", "gpu-0"), ("n-10", "gpu-1"), namespace="web"),
]
"""Five devices free or not: n-10 is full, n-2 half, n-3 free and cordoned."""


def cells(question: NodeQuestion) -> list[tuple[str, str, int, int]]:
    """Group, node, free, taken."""
    shown = view_of(FLEET).overview(question)
    return [(shown["groups"][at][0], name, counts[0], counts[1]) for name, at, _, *counts in shown["cells"]]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (asked(), [("", "n-2", 1, 1), ("", "n-3", 2, 0), ("", "n-10", 0, 2)]),
        (asked(order="free"), [("", "n-3", 2, 0), ("", "n-2", 1, 1), ("", "n-10", 0, 2)]),
        (asked(order="used"), [("", "n-10", 0, 2), ("", "n-2", 1, 1), ("", "n-3", 2, 0)]),
        (asked(order="trouble"), [("", "n-3", 2, 0), ("", "n-2", 1, 1), ("", "n-10", 0, 2)]),
        (asked(group="zone"), [("a", "n-2", 1, 1), ("a", "n-3", 2, 0), ("b", "n-10", 0, 2)]),
        (asked(group="rack"), [("r1", "n-10", 0, 2), (NONE, "n-2", 1, 1), (NONE, "n-3", 2, 0)]),
        (asked(group="namespace", zone="a"), [("ml", "n-2", 0, 1), (NONE, "n-2", 1, 0), (NONE, "n-3", 2, 0)]),
        (asked(group="class", model="h100"), [("gpu", "n-2", 1, 1), ("h100", "n-2", 1, 1)]),
        (asked(group="class", **{"class": "h100"}), [("h100", "n-2", 1, 1)]),
        (asked(namespace="web"), [("", "n-10", 0, 2)]),
        (asked(driver=DRIVER, state="free"), [("", "n-2", 1, 0), ("", "n-3", 2, 0)]),
        (asked(find="WEB/two gpu-1"), [("", "n-10", 0, 1)]),
        (asked(find="h100 gpu-1"), [("", "n-2", 1, 0)]),
        (asked(rack="absent"), []),
    ],
)
def test_nodes_are_grouped_filtered_and_ordered(
    question: NodeQuestion, expected: list[tuple[str, str, int, int]]
) -> None:
    assert cells(question) == expected


def test_totals_count_all_states_that_the_other_filters_leave() -> None:
    shown = view_of(FLEET).overview(asked(zone="a", state="taken"))
    assert (shown["totals"], shown["devices"], shown["nodes"]) == ({"all": 4, "free": 3, "taken": 1}, 1, 1)
    assert shown["facets"]["zone"] == {"values": [["a", 4], ["b", 2]], "more": 0}
    assert [condition for _, _, condition, *_ in view_of(FLEET).overview(asked())["cells"]] == ["", "cordoned", ""]


def test_a_device_whose_counters_others_have_drawn_is_counted_like_any_other() -> None:
    def draws(name: str, amount: str) -> Json:
        return {"name": name, "consumesCounters": [{"counterSet": "c", "counters": {"memory": {"value": amount}}}]}

    pool, counters = {"name": "n", "generation": 1, "resourceSliceCount": 2}, {"memory": {"value": "40Gi"}}
    slices = (
        {"sharedCounters": [{"name": "c", "counters": counters}]},
        {"devices": [draws("half", "20Gi"), draws("whole", "40Gi")]},
    )
    published = [
        {
            "kind": "ResourceSlice",
            "metadata": {"name": f"s-{at}"},
            "spec": {"driver": DRIVER, "nodeName": "n", "pool": pool, **part},
        }
        for at, part in enumerate(slices)
    ]
    node_ = {"kind": "Node", "metadata": {"name": "n"}}
    shown = view_of([node_, *published, device_class(), claim("one", ("n", "half"))])
    news = shown.overview(NodeQuestion())
    assert news["totals"] == {"all": 2, "taken": 1, "drawn": 1}
    assert sum(news["cells"][0][3:]) == news["devices"] == 2
    assert shown.overview(NodeQuestion(state="drawn"))["devices"] == 1


def test_the_page_has_each_state_of_the_ledger_but_that_of_what_is_not_published() -> None:
    assert {*lines.STATES, "gone"} == set(LEDGER_STATES)
    script, styles = ((PAGE / name).read_text() for name in ("nodes.js", "app.css"))
    assert f"const STATES = {json.dumps(lines.STATES)};" in script
    assert all(f'.tile[data-state="{state}"]' in styles for state in lines.STATES)


def test_claims_and_classes_are_lists_that_can_be_sorted_and_searched() -> None:
    shown = view_of([*FLEET, claim("three")])
    rows = shown.claims(Wish("-devices"), 0, 2)
    assert [(row["key"], row["devices"], row["state"]) for row in rows["rows"]] == [
        ("web/two", 2, "allocated"),
        ("ml/one", 1, "allocated"),
    ]
    assert rows["kinds"] == [("allocated", 2), ("pending", 1)]
    assert shown.claims(Wish("name", "n-10/gpu-1"), 0, 9)["total"] == 1
    assert shown.claims(Wish("name", kind="pending"), 0, 9)["rows"][0]["key"] == "ml/three"
    found = {row["name"]: row for row in shown.classes(Wish("name"), 0, 9)["rows"]}
    assert [found["gpu"][name] for name in ("devices", "used", "free", "waiting")] == [6, 3, 3, 1]
    assert (found["h100"]["devices"], found["h100"]["command"]) == (2, "kubectl dra free --class=h100")
    about = shown.device_class("gpu")
    assert about is not None
    assert about["waiting"] == ["ml/three"]


def test_a_selector_that_fails_or_does_not_compile_means_no_device() -> None:
    shown = view_of([*FLEET, device_class("broken", "device."), device_class("typo", 'device.attributes["x"].y == 1')])
    assert {row["name"]: row["devices"] for row in shown.classes(Wish("name"), 0, 9)["rows"]} == {
        "broken": 0,
        "gpu": 6,
        "h100": 2,
        "typo": 0,
    }


def test_classes_for_which_there_was_no_time_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "CLASSES_SECONDS", -1.0)
    rows = view_of(FLEET).classes(Wish("name"), 0, 9)["rows"]
    assert [row["known"] for row in rows] == [False, False]


def test_waiting_pods_say_what_their_scheduler_said_until_causes_are_worked_out() -> None:
    objects = [*FLEET, claim("w-1"), claim("w-2"), pod("w-1", "0/3 nodes are available", 5), pod("w-2", minutes=90)]
    shown = view_of(objects)
    before = shown.waiting(Wish("-age"), 0, 9)
    assert [(row["key"], row["age"], row["cause"]) for row in before["rows"]] == [
        ("ml/w-2", "90m", lines.SAID_NOTHING),
        ("ml/w-1", "5m", "0/3 nodes are available"),
    ]
    assert before["rows"][1]["command"] == "kubectl dra why -n ml -- pod w-1"
    assert not before["judged"]
    shown.judge()
    after = shown.waiting(Wish("name"), 0, 9)
    assert after["judged"]
    assert {row["clear"] for row in after["rows"]} == {True}, "n-2 has a free device"
    again = view_of(objects, before=shown).waiting(Wish("name"), 0, 9)
    assert (again["rows"], again["judged"]) == (after["rows"], False), "the last causes stay until there are new ones"


def test_a_pod_for_which_there_was_no_time_says_what_its_scheduler_said(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = view_of([*FLEET, claim("w"), pod("w", "no room")])
    ends: Iterator[float] = iter([0.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    with shown.pausing.within(1.0, clock=lambda: next(ends)):
        shown.judge()
    assert [row["cause"] for row in shown.waiting(Wish("name"), 0, 9)["rows"]] == ["no room"]


def test_a_viewer_who_may_not_see_all_has_what_the_scheduler_said() -> None:
    shown = view_of([*FLEET, claim("w"), pod("w", "no room")], unseen={"nodes": "nodes is forbidden"})
    shown.judge()
    assert [row["cause"] for row in shown.waiting(Wish("name"), 0, 9)["rows"]] == ["no room"]


def test_a_name_that_no_object_can_have_is_in_no_command() -> None:
    commands = Commands([("--context", "a b"), ("--from", "--all")])
    why = commands.why
    assert why("pod", "ml/web") == "kubectl dra why '--context=a b' --from=--all -n ml -- pod web"
    assert why("pod", f"ml/{MARKUP}") == why("pod", "ml/--all") == why("pod", "$(x)/web") == ""
    assert commands.free("h100") == "kubectl dra free --class=h100 '--context=a b' --from=--all"
    assert commands.topology("n-1") == "kubectl dra topology '--context=a b' --from=--all -- n-1"
    assert commands.free("--all") == commands.topology("--all") == ""


def test_a_copied_command_reads_the_same_cluster_in_the_same_name_with_the_same_settings() -> None:
    words = ["--context", "test", "--as", "bob", "--as-group", "a", "--as-group", "b c", "--request-timeout", "1m"]
    words += ["--scheduler-name", "mine", "--feature-gates", "DRAConsumableCapacity=true", "--device-order", "aligned"]
    options = parser(["ui"]).parse_args(["ui", *words, "--token", "secret"])
    commands = Commands(given_options(options))
    for command in (commands.why("pod", "ml/web"), commands.free("h100"), commands.topology("n-1")):
        assert "secret" not in command
        program, plugin, *copied = shlex.split(command)
        assert (program, plugin) == ("kubectl", "dra")
        again = parser(copied).parse_args(copied)
        assert given_options(again) == given_options(options)
        assert (again.as_user, again.as_group, again.scheduler_name) == ("bob", ["a", "b c"], "mine")


def test_a_revision_changes_with_what_is_shown_and_not_with_the_time() -> None:
    first = view_of(FLEET)
    assert view_of(FLEET, malformed={}).revision == first.revision
    for more in ([claim("new")], node("n-4"), [device_class("another")], [claim("w"), pod("w")]):
        assert view_of([*FLEET, *more]).revision != first.revision


@pytest.mark.parametrize("part", ["metadata", "status", "class"])
def test_a_revision_changes_with_each_cell_of_a_list(part: str) -> None:
    held, class_ = claim("x", ("n-1", "gpu-0")), device_class("another")
    held["status"]["reservedFor"] = [{"resource": "pods", "name": "a", "uid": "uid-a"}]
    first = view_of([*FLEET, held, class_])
    if part == "metadata":
        held["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    elif part == "status":
        held["status"]["reservedFor"] = [{"resource": "pods", "name": "b", "uid": "uid-b"}]
    else:
        class_["spec"]["extendedResourceName"] = "example.com/another"
    second = view_of([*FLEET, held, class_])
    lists_of = [(it.claims(Wish(), 0, 99)["rows"], it.classes(Wish(), 0, 99)["rows"]) for it in (first, second)]
    assert lists_of[0] != lists_of[1]
    assert first.revision != second.revision


def test_history_drops_every_second_point_and_keeps_gaps() -> None:
    now = 0.0
    history, shown = History(lambda: now), view_of(FLEET)
    for number in range(History.MOST_POINTS * 3):
        now += 600.0 if number == 41 else 3.0
        history.add(shown)
        assert len(history.points) <= History.MOST_POINTS
    assert history.points[-1][1:] == (6, 3, 0, False)
    assert sum(point[4] for point in history.points) == 1, "nobody looked once"


def worst(number: int) -> list[Json]:
    """Each name as long as it may be, each text with markup, and so many of each thing."""
    objects = [device_class(f"c-{at}-{LONG}"[:253]) for at in range(number)]
    for at in range(number):
        objects += node(f"{at}-{LONG}"[:253], number, labels={"zone": f"z-{at}-{LONG}"[:63]}, model=f"{at}{MARKUP}")
        objects.append(claim(f"{at}-{LONG}"[:253], namespace=f"n-{at}"))
        objects.append(pod(f"p-{at}-{LONG}"[:253], f"{at} {MARKUP} {LONG * 40}"))
        objects.append(claim(f"p-{at}-{LONG}"[:253]))
    shared = claim("all", *((f"0-{LONG}"[:253], f"gpu-{at}") for at in range(number)))
    return [*objects, shared]


def test_every_answer_has_a_limit_whatever_tenants_and_drivers_write(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in {"PAGE_CELLS": 20, "OFFERED_VALUES": 10, "LINE_TILES": 8}.items():
        monkeypatch.setattr(lines, name, most)
    for name, most in {"TREE_ENTRIES": 10, "PAGE_HOLDERS": 5, "MOST_NOTE_LINES": 5, "MOST_WHY_LINES": 10}.items():
        monkeypatch.setattr(view, name, most)
    monkeypatch.setattr(lines, "OFFERED_REASONS", 5)
    few, many = (
        view_of(worst(number), malformed={f"Pod ml/{at}{LONG}": MARKUP * 99 for at in range(number)})
        for number in (24, 36)
    )
    first = f"0-{LONG}"[:253]
    wish = Wish("name")

    def answers(it: View) -> dict[str, Json | None]:
        return {
            **{f"by {group}": it.overview(asked(group=group)) for group in ("", *FACETS)},
            "tiles": it.tiles(asked(), 0, 20),
            "waiting": it.waiting(wish, 0, 20),
            "claims": it.claims(wish, 0, 20),
            "classes": it.classes(wish, 0, 20),
            "device": it.device(f"{DRIVER}/{first}/gpu-0"),
            "node": it.topology(first),
            "class": it.device_class(f"c-0-{LONG}"[:253]),
            "why": it.why("pod", f"ml/p-0-{LONG}"[:256]),
        }

    sizes = [{name: len(msgspec.json.encode(answer)) for name, answer in answers(it).items()} for it in (few, many)]
    for name, (small, large) in {name: (sizes[0][name], sizes[1][name]) for name in sizes[0]}.items():
        assert large < 1.1 * small, f"{name} grows with the number of objects: {small} and {large} bytes"
        assert large < 100_000, name
    tree = many.topology(first)
    assert tree is not None
    assert (len(tree["children"]), tree["left_out"]) == (10, 26)
    assert json.dumps(many.overview(asked())).count(MARKUP) > 0, (
        "texts are sent as they are, and the page makes text of them"
    )
