"""Opaque configuration of claims and classes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.content import Content, given, shown
from dra_driver_test.harness.devices import Device, Json
from dra_driver_test.harness.server import Use, opaque

OTHER = "other.driver-test.example.com"
UNKNOWN_FIELD = "noSuchField"


MOST_GUESSES = 48
"""Values that are tried for parameters of which one set is known."""
TOLD_ATTEMPTS = 2
"""Refusals of which the words are tried: a driver may say which values it knows."""
COMMON = (
    "red green blue yellow black white on off true false yes no auto none default low medium high small large fast "
    "slow Default Short Medium Long TimeSlicing SpacePartitioning MPS Shared Exclusive a b 1 2"
)
"""Values that parameters of drivers often have."""
_WORD = re.compile(r"[\w.:-]+")


def _good(bench: Bench) -> Json:
    """Parameters that the driver accepts. Raises Skipped."""
    if bench.parameters.good is None:
        raise Skipped("no good parameters are known: give some with --parameters")
    return bench.parameters.good


async def _content(bench: Bench, *uses: Use, config: Sequence[Json] = (), request: str = "req") -> Content:
    """What a container gets each time of a claim with that configuration."""
    seen = []
    for _ in range(2):
        claim = await bench.use(*uses, config=config)
        seen.append(given(bench, await bench.prepared(claim), request))
        await bench.unprepare(claim)
        await bench.server.delete(claim)
    return seen[0] & seen[1]


async def _effect(bench: Bench, use: Use, parameters: Json, *requests: str) -> Content:
    """What parameters alone bring to a container. Raises Skipped if that is nothing, and Finding."""
    request = use.request.partition("/")[0]
    without = await _content(bench, use, request=request)
    config = [opaque(bench.name, parameters, "FromClaim", *(requests or (request,)))]
    effect = await _content(bench, use, config=config, request=request) - without
    if not effect:
        raise Skipped("the parameters do not show in CDI edits")
    return effect


@check("api.md 2", "TD-01")
async def of_other_drivers_is_ignored(bench: Bench) -> None:
    """Parameters for another driver in the same claim do not matter.

    Claims may hold devices of several drivers, each with its own parameters.
    """
    device = await bench.device()
    config = [opaque(OTHER, {"apiVersion": "other.example.com/v7", "kind": "Unheard", "of": ["by", "this"]})]
    await bench.held(device, config=config)


@check("TD-01")
async def of_a_claim_is_accepted(bench: Bench) -> None:
    """Good parameters in a claim are accepted (``--parameters``)."""
    await _accepted(bench, "FromClaim")


@check("TD-01")
async def of_a_class_is_accepted(bench: Bench) -> None:
    """Good parameters that come from the class are accepted (``--parameters``)."""
    await _accepted(bench, "FromClass")


async def _accepted(bench: Bench, source: str) -> None:
    config = [opaque(bench.name, _good(bench), source, "req")]
    await bench.prepare(await bench.claim(await bench.device(), config=config))


@check("TD-01", "PH-08")
async def that_is_bad_is_refused(bench: Bench) -> None:
    """Bad parameters, of a claim or of its class, fail the claim instead of being ignored (``--bad-parameters``)."""
    if bench.parameters.bad is None:
        raise Skipped("no bad parameters are known: give some with --bad-parameters")
    device = await bench.device()
    for source in ("FromClaim", "FromClass"):
        claim = await bench.claim(device, config=[opaque(bench.name, bench.parameters.bad, source)])
        await bench.refused(claim, f"with the bad parameters {bench.parameters.bad}, {source}")


@check("TD-01", level=Level.SHOULD)
async def of_other_requests_is_ignored(bench: Bench) -> None:
    """Bad parameters for a request that another driver serves do not matter (``--bad-parameters``)."""
    if bench.parameters.bad is None:
        raise Skipped("no bad parameters are known: give some with --bad-parameters")
    foreign = Device(OTHER, "other", "other-0", {})
    config = [opaque(bench.name, bench.parameters.bad, "FromClaim", "other")]
    await bench.prepare(await bench.server.claim(Use(await bench.device()), Use(foreign, "other"), config=config))


@check("TD-01", "KM-17")
async def of_one_request_stays_there(bench: Bench) -> None:
    """Parameters for one request of a claim do not show in what containers get of the other (``--parameters``)."""
    good, devices = _good(bench), await bench.devices(2)
    config = [opaque(bench.name, good, "FromClaim", "req")]
    effect = await _effect(bench, Use(devices[0]), good)
    uses = bench.uses(*devices)
    without = await _content(bench, *uses, request="req-1")
    if strayed := effect & (await _content(bench, *uses, config=config, request="req-1") - without):
        raise Finding(f"the parameters are for 'req' alone, and containers of 'req-1' also get {shown(strayed)}")


@check("TD-01", "api.md 2")
async def of_a_class_stays_beside_one_of_the_claim(bench: Bench) -> None:
    """Parameters of the class of one request show there, while the claim has some for another request."""
    good, uses = _good(bench), bench.uses(*await bench.devices(2))
    of_the_class = opaque(bench.name, good, "FromClass", "req")
    alone = await _content(bench, *uses, config=[of_the_class])
    effect = alone - await _content(bench, *uses)
    both = await _content(bench, *uses, config=[of_the_class, opaque(bench.name, good, "FromClaim", "req-1")])
    if lost := effect - both:
        raise Finding(
            f"the claim has parameters for 'req-1', and containers of 'req' get no {shown(lost)} of their class"
        )


@check("TD-01", "PH-08", level=Level.SHOULD)
async def with_an_unknown_field_is_refused(bench: Bench) -> None:
    """Parameters with a field that the driver does not know are refused, instead of being read in part.

    A misspelt field is otherwise silently the default, and the pod runs with something else than the user wrote. Good
    parameters are needed (``--parameters``), and one field is added to them.
    """
    config = [opaque(bench.name, {**_good(bench), UNKNOWN_FIELD: {"unheard": True}})]
    await bench.refused(await bench.claim(await bench.device(), config=config), f"with the field {UNKNOWN_FIELD!r}")


@check("TD-01", "api.md 2")
async def of_the_claim_wins(bench: Bench) -> None:
    """Where class and claim both have parameters, those of the claim win (``--parameters``).

    An allocation lists those of the class first. A second value that the driver accepts is given by a second
    ``--parameters``, or found by trying.
    """
    await _last_wins(bench, "FromClass")


@check("TD-01", "api.md 2", level=Level.SHOULD)
async def that_comes_later_wins(bench: Bench) -> None:
    """Of two sets of parameters in a claim for the same request, the later one wins (``--parameters``)."""
    await _last_wins(bench, "FromClaim")


async def _last_wins(bench: Bench, source: str) -> None:
    good, use = _good(bench), Use(await bench.device())
    effect = await _effect(bench, use, good)
    async for other, changed in _others(bench, use, effect):
        config = [opaque(bench.name, good, source, "req"), opaque(bench.name, other, "FromClaim", "req")]
        found = await _content(bench, use, config=config)
        if (effect - changed) & found and not (changed - effect) & found:
            raise Finding(
                f"first are the parameters {good} ({source}), then {other} (FromClaim), and a container gets "
                f"{shown(effect - changed)} of the first"
            )
        return
    raise Skipped("one set of good parameters is known, and no other value was accepted: repeat --parameters")


async def _others(bench: Bench, use: Use, effect: Content) -> AsyncIterator[tuple[Json, Content]]:
    """Other parameters that the driver accepts, with what they bring instead."""
    words = COMMON.split()
    told = 0
    tried: set[str] = set()
    without = await _content(bench, use)
    guesses = [*bench.parameters.more, *_changed(_good(bench), words)]
    while guesses and len(tried) < MOST_GUESSES:
        other = guesses.pop(0)
        if (key := json.dumps(other, sort_keys=True)) in tried or other == bench.parameters.good:
            continue
        tried.add(key)
        try:
            changed = await _content(bench, use, config=[opaque(bench.name, other, "FromClaim", "req")]) - without
        except Finding as refusal:
            told += 1
            if told <= TOLD_ATTEMPTS:
                new = [word for word in _WORD.findall(str(refusal)) if word not in words]
                words += new
                guesses = [*guesses, *_changed(_good(bench), new[::-1])]
            await bench.unprepare(*bench.server.made())
            continue
        if changed - effect and effect - changed:
            yield other, changed


def _changed(parameters: Json, words: Sequence[str]) -> Iterator[Json]:
    """The parameters with another value of the same type in one place; a text becomes a word, or a new one."""
    for key, value in parameters.items():
        if key in ("apiVersion", "kind"):
            continue
        if isinstance(value, dict):
            yield from ({**parameters, key: inner} for inner in _changed(value, words))
        elif isinstance(value, bool):
            yield {**parameters, key: not value}
        elif isinstance(value, int | float):
            yield from ({**parameters, key: value + step} for step in (1, -1))
        elif isinstance(value, str):
            yield {**parameters, key: f"{value}2"}
            yield from ({**parameters, key: word} for word in words if word != value)


@check("TD-01", "api.md 2")
async def of_several_requests_reaches_each(bench: Bench) -> None:
    """Parameters that name two requests count for both (``--parameters``)."""
    good, devices = _good(bench), await bench.devices(2)
    effects = [_texts(await _effect(bench, Use(device), good)) for device in devices]
    if not all(effects):
        raise Skipped("the parameters show in no text, so that one device cannot be told from the other")
    uses = bench.uses(*devices)
    config = [opaque(bench.name, good, "FromClaim", *(use.request for use in uses))]
    prepared = await bench.prepared(await bench.use(*uses, config=config))
    for use, effect in zip(uses, effects, strict=True):
        if not effect & given(bench, prepared, use.request):
            raise Finding(f"the parameters are for req and req-1, and a container with {use.request} gets none of them")


def _texts(content: Content) -> Content:
    """Those of the values of variables, whose names may number the devices of a claim."""
    return frozenset(statement for statement in content if statement[0] == "text")


@check("TD-01", "KM-17")
async def of_a_request_reaches_its_subrequests(bench: Bench) -> None:
    """Parameters for a request count for the subrequest that was chosen of it (``--parameters``)."""
    await _reaches(bench, "req", "")


@check("TD-01", "KM-17")
async def of_a_subrequest_reaches_its_devices(bench: Bench) -> None:
    """Parameters for a subrequest count for its devices (``--parameters``)."""
    await _reaches(bench, "req/small", "")


@check("TD-01", "KM-17")
async def of_another_subrequest_stays_there(bench: Bench) -> None:
    """Parameters for a subrequest do not count when another one of its request was chosen (``--parameters``)."""
    await _reaches(bench, "req/large", "not")


async def _reaches(bench: Bench, named: str, not_: str) -> None:
    """Raises Finding if parameters for that request reach a device of req/small, or do not."""
    good, device = _good(bench), await bench.device()
    effect = await _effect(bench, Use(device), good)
    chosen = Use(device, "req/small")
    got = await _content(bench, chosen, config=[opaque(bench.name, good, "FromClaim", named)]) & effect
    if bool(got) is bool(not_):
        wrong = f"its container gets {shown(got)}" if not_ else "show nothing in its container"
        raise Finding(f"the parameters are for {named!r}, the device is allocated for 'req/small', and {wrong}")


@check("TD-01", "KM-18")
async def of_one_claim_stays_there(bench: Bench) -> None:
    """Parameters of a claim do not show in what containers of another claim get (``--parameters``)."""
    good, devices = _good(bench), await bench.devices(2)
    effect = await _effect(bench, Use(devices[1]), good)
    await bench.prepare(await bench.claim(devices[0], config=[opaque(bench.name, good)]))
    if strayed := effect & given(bench, await bench.prepared(await bench.claim(devices[1]))):
        raise Finding(f"a claim without parameters gets {shown(strayed)} of those of another claim")


@check("TD-01", "KM-16")
async def follows_a_new_allocation(bench: Bench) -> None:
    """A claim that was unprepared, and allocated anew without parameters, shows none of the old (``--parameters``)."""
    good, use = _good(bench), Use(await bench.device())
    effect = await _effect(bench, use, good)
    claim = await bench.use(use, config=[opaque(bench.name, good)])
    await bench.prepare(claim)
    await bench.unprepare(claim)
    await bench.server.allocate(claim, use)
    if left := effect & given(bench, await bench.prepared(claim)):
        raise Finding(f"the claim was allocated anew without parameters, and its container gets {shown(left)}")


@check("KM-16", level=Level.SHOULD)
async def follows_an_allocation_made_meanwhile(bench: Bench) -> None:
    """A prepared claim that is allocated the same device without parameters shows none of the old (``--parameters``).

    Until the claim is unprepared a driver may refuse it.
    """
    good, use = _good(bench), Use(await bench.device())
    effect = await _effect(bench, use, good)
    claim = await bench.use(use, config=[opaque(bench.name, good)])
    await bench.prepare(claim)
    await bench.server.allocate(claim, use)
    try:
        found = given(bench, await bench.prepared(claim))
    except Finding:
        await bench.unprepare(claim)
        return
    if left := effect & found:
        raise Finding(f"the prepared claim was allocated anew without parameters, and its container gets {shown(left)}")


@check("NOD-009", "KM-16", restarts=True, waits=True)
async def outlasts_a_restart(bench: Bench) -> None:
    """A claim with parameters that is prepared again after a restart shows them as before (``--parameters``)."""
    await _outlasts(bench, reboots=False)


@check("KM-16", "TD-02", restarts=True, waits=True)
async def outlasts_a_reboot(bench: Bench) -> None:
    """A claim with parameters that is prepared again after a reboot shows them as before (``--parameters``)."""
    await _outlasts(bench, reboots=True)


async def _outlasts(bench: Bench, *, reboots: bool) -> None:
    good, use = _good(bench), Use(await bench.device())
    effect = await _effect(bench, use, good)
    claim = await bench.use(use, config=[opaque(bench.name, good)])
    await bench.prepare(claim)
    await (bench.reboot() if reboots else bench.restart(kill=True))
    found = given(bench, await bench.prepared(claim))
    if lost := effect - found:
        raise Finding(f"the claim has the parameters {good}, and prepared again it gives a container no {shown(lost)}")
