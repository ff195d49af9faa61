"""What a driver may implement beside ``prepare``: all claims of a call at once, and a word when it starts; its log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    ContainerEdits,
    Driver,
    KubeletPlugin,
    Prepared,
    PreparedDevice,
    StartError,
    results_for,
)
from dra_kubeletplugin import plugin as module
from dra_kubeletplugin.commands.command import set_up_logging
from dra_kubeletplugin.testing import DriverNode, RunningDriver
from waiting import becomes

NAME = "gpu.example.com"


def devices_of(claim: ResourceClaim) -> Prepared:
    edits = ContainerEdits(env=(f"CLAIM={claim.metadata.name}",))
    return [PreparedDevice.of(result, edits=edits) for result in results_for(NAME, claim)]


class Together(Driver):
    """Prepares the claims of a call together; ``answer`` changes what it says."""

    answer: Any = None

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.prepared: list[ClaimRef] = []

    async def started(self, plugin: KubeletPlugin) -> None:
        self.prepared = plugin.prepared_claims

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        self.calls.append([f"{claim.metadata.name} alone"])
        return devices_of(claim)

    async def prepare_all(self, claims: Sequence[ResourceClaim]) -> Any:
        self.calls.append([claim.metadata.name for claim in claims])
        answers: dict[str, Any] = {claim.metadata.uid: devices_of(claim) for claim in claims}
        return type(self).answer(answers) if type(self).answer else answers


@pytest.fixture(autouse=True)
def sound() -> Iterator[None]:
    yield
    Together.answer = None


async def call(running: RunningDriver, *names: str) -> dict[str, str]:
    """Prepare claims in one call; returns the error of each, empty if there is none."""
    claims = {name: await running.claim(name, name=name) for name in names}
    answers = await running.kubelet.prepare(claims.values())
    return {name: answers[claim.uid].error for name, claim in claims.items()}


async def test_all_claims_of_a_call_are_prepared_together(driver_node: DriverNode) -> None:
    async with driver_node.run(Together, NAME) as running:
        driver = running.driver
        assert isinstance(driver, Together)
        claims = [await running.claim(name, name=name) for name in ("a", "b")]
        first = await running.kubelet.prepare(claims)
        assert [len(first[claim.uid].devices) for claim in claims] == [1, 1]
        third = await running.claim("c", name="c")
        await running.kubelet.prepare([*claims, third])
        assert driver.calls == [["a", "b"], ["c"]], "those that are prepared are answered"
        again = await running.kubelet.prepare(claims)
        assert driver.calls == [["a", "b"], ["c"]]
        assert [again[claim.uid] for claim in claims] == [first[claim.uid] for claim in claims]
        await running.plugin.prepare_again(["a"])
        assert driver.calls[-1] == ["a alone"]
        await running.reboot()
        assert isinstance(running.driver, Together)
        await running.kubelet.prepare([*claims, third])
        assert running.driver.calls == [["a", "b", "c"]]
        for claim in (*claims, third):
            await running.unprepare(claim)
        assert not list(driver_node.cdi_dir.iterdir())


def _raise(error: BaseException) -> Any:
    raise error


class Odd(BaseException):
    """As of a library that does not want to be caught."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _endless(claim: ResourceClaim) -> Iterator[PreparedDevice]:
    yield from devices_of(claim)
    raise SystemExit(2)


ODD: list[tuple[str, Callable[[ResourceClaim], Any], str]] = [
    ("no Exception", lambda _: _raise(Odd("burnt")), "the driver raised Odd, which is no Exception: burnt; catch it"),
    ("sys.exit", lambda _: _raise(SystemExit(2)), "the driver raised SystemExit, which is no Exception: 2; catch it"),
    ("sys.exit in a generator", _endless, "the driver raised SystemExit, which is no Exception: 2; catch it"),
    ("a group", lambda _: _raise(BaseExceptionGroup("both", [Odd()])), "the driver raised BaseExceptionGroup"),
    ("an error that cannot be told", lambda _: _raise(Mute()), "Mute"),
    ("an error without a text", lambda _: _raise(ValueError()), "ValueError"),
    ("errors of a TaskGroup",
     lambda _: _raise(ExceptionGroup("in a TaskGroup", [OSError(5, "I/O error"), KeyError("x")])),
     "in a TaskGroup (2 sub-exceptions): [Errno 5] I/O error; KeyError: 'x'"),
    ("what was to be awaited", lambda _: asyncio.get_running_loop().create_future(), ">: await it"),
    ("a text of 10 MB", lambda _: _raise(ValueError("x" * 10**7)), "xxx... (10,000,000 characters)"),
    ("a variable that is no UTF-8", lambda claim: [
        PreparedDevice.of(result, edits=ContainerEdits(env=("A=\udcff",))) for result in results_for(NAME, claim)],
     "a value that its field cannot have: 'A=\\udcff' is no UTF-8"),
    ("a path that is no UTF-8", lambda claim: [
        PreparedDevice.of(result, owns=["/dev/\udcff"]) for result in results_for(NAME, claim)],
     "a value that its field cannot have: '/dev/\\udcff' is no UTF-8"),
]  # fmt: skip


class Alone(Driver):
    """Answers for the claim ``a`` as it is told, and for others as it should."""

    answer: Callable[[ResourceClaim], Any] = devices_of

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return type(self).answer(claim) if claim.metadata.name == "a" else devices_of(claim)


@pytest.mark.parametrize(("answer", "error"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
async def test_what_a_driver_raises_costs_its_claim_and_no_other(
    driver_node: DriverNode, monkeypatch: pytest.MonkeyPatch, answer: Callable[[ResourceClaim], Any], error: str
) -> None:
    """The call of both claims failed, or had no answer until the kubelet gave it up."""
    monkeypatch.setattr(Alone, "answer", staticmethod(answer))
    async with driver_node.run(Alone, NAME) as running:
        claims = [await running.claim(name, name=name) for name in ("a", "b")]
        found = await running.kubelet.prepare(claims)
        assert error in found[claims[0].uid].error
        assert found[claims[1].uid].error == ""
        monkeypatch.setattr(Alone, "answer", staticmethod(devices_of))
        found = await running.kubelet.prepare(claims)
        assert [found[claim.uid].error for claim in claims] == ["", ""]


async def test_a_device_for_which_a_driver_returns_nothing_is_named(
    driver_node: DriverNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with ``results_for`` and another driver's name: the pod started without its device, and nothing said why."""
    monkeypatch.setattr(Alone, "answer", staticmethod(lambda _: []))
    async with driver_node.run(Alone, NAME) as running:
        claims = [await running.claim(name, name=name) for name in ("a", "b")]
        await running.kubelet.prepare(claims)
    said = [it.getMessage() for it in caplog.records if "returned nothing for" in it.getMessage()]
    assert [text.partition(":")[0] for text in said] == [
        "the driver's prepare returned nothing for a of claim default/a"
    ]


ANSWERS: list[tuple[str, Any, dict[str, str]]] = [
    ("an error of one", lambda found: {**found, next(iter(found)): ClaimError("burnt")}, {"a": "burnt"}),
    ("nothing for one", lambda found: dict(list(found.items())[1:]),
     {"a": "the driver's prepare_all returned nothing for claim default/a, uid"}),
    ("a wrong device for one", lambda found: {**found, next(iter(found)): found[list(found)[1]]},
     {"a": "the device b of pool worker-1, which is not allocated to the claim"}),
    ("an exception", lambda found: _raise(ClaimError("all burnt")), {"a": "all burnt", "b": "all burnt"}),
    ("no dict", lambda found: list(found), {"a": "return a dict of", "b": "return a dict of"}),
    ("one more", lambda found: {**found, "x": []}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "errors"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS])
async def test_the_error_of_a_claim_is_its_own(driver_node: DriverNode, answer: Any, errors: dict[str, str]) -> None:
    Together.answer = staticmethod(answer)
    async with driver_node.run(Together, NAME) as running:
        found = await call(running, "a", "b")
        for name, error in found.items():
            assert (errors[name] in error) if name in errors else not error
        assert len(list(driver_node.cdi_dir.glob("*.json"))) == 2 - len(errors)


async def test_a_driver_that_starts_learns_what_is_prepared_before_the_kubelet_calls(driver_node: DriverNode) -> None:
    async with driver_node.run(Together, NAME) as running:
        assert isinstance(running.driver, Together)
        assert running.driver.prepared == []
        claim = await running.claim("a")
        await running.prepare(claim)
        await running.restart()
        assert isinstance(running.driver, Together)
        assert running.driver.prepared == [claim]
        assert [device.device for device in running.driver.prepared[0].devices] == ["a"]


async def test_a_driver_that_cannot_start_ends_the_start_and_leaves_nothing(driver_node: DriverNode) -> None:
    class Broken(Together):
        async def started(self, plugin: KubeletPlugin) -> None:
            assert not plugin.settings.plugin_path.exists(), "nothing is served yet"
            raise StartError("no GPUs: load the kernel module")

    plugin = KubeletPlugin(Broken(), driver_node.settings(NAME), driver_node.api.client)
    with pytest.raises(StartError, match="no GPUs"):
        await plugin.__aenter__()
    assert not (driver_node.root / NAME).exists()


@pytest.mark.parametrize("call", ["registered", "wait"])
async def test_a_start_that_would_wait_for_itself_is_an_error_at_once(driver_node: DriverNode, call: str) -> None:
    """It hung for ever, with nothing in the log."""

    class Waiting(Together):
        async def started(self, plugin: KubeletPlugin) -> None:
            await getattr(plugin, call)()

    plugin = KubeletPlugin(Waiting(), driver_node.settings(NAME), driver_node.api.client)
    async with asyncio.timeout(20):
        with pytest.raises(StartError, match=rf"plugin.{call}\(\) within started would wait for ever: .* own"):
            await plugin.__aenter__()


async def test_a_task_of_the_start_may_wait_for_the_registration(driver_node: DriverNode) -> None:
    class Watching(Together):
        async def started(self, plugin: KubeletPlugin) -> None:
            self.waiting = asyncio.create_task(plugin.registered())

    async with driver_node.run(Watching, NAME) as running:
        assert isinstance(running.driver, Watching)
        await asyncio.wait_for(running.driver.waiting, 20)


async def test_a_start_that_takes_long_says_what_it_waits_for(
    driver_node: DriverNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Together):
        async def started(self, plugin: KubeletPlugin) -> None:
            await becomes(lambda: "the driver's started has not returned" in caplog.text)

    monkeypatch.setattr(module, "_LATE_START_SECONDS", 0.01)
    async with driver_node.run(Slow, NAME):
        assert "the plugin serves no call before" in caplog.text


def test_a_method_with_the_wrong_kind_of_function_is_refused() -> None:
    async def yields(self: object, _: object) -> AsyncIterator[int]:
        yield 1

    async def waits(self: object, error: object, message: str) -> None: ...

    for name, method, text in (
        ("prepare", yields, "X.prepare must return: write 'return' in it instead of 'yield'"),
        ("handle_error", waits, "X.handle_error is not waited for: write 'def handle_error'"),
    ):
        with pytest.raises(TypeError, match=text):
            type("X", (Together,), {name: method})


@pytest.mark.parametrize("name", ["started", "prepare_all"])
def test_a_method_that_nothing_could_wait_for_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"X.{name} must be asynchronous"):
        type("X", (Together,), {name: lambda self, _: None})


def test_a_log_line_may_be_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        set_up_logging("info", "json")
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("driver").exception("cannot read %s", "/dev/é")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "driver", "cannot read /dev/é")
    assert "ValueError: two" in entry["exception"]
    assert entry["time"].endswith("+00:00")
