"""``dra-operator cel``: try out device selectors without a cluster.

Two ways: ``cel FILE`` answers a file of cases (the format of the reference data: a table of devices, and cases that
name one) with one JSON line each, and ``cel -`` a stream of them; ``cel -e EXPRESSION -f slices.yaml`` says for every
published device whether the expression selects it, and what the expression refers to that the device does not publish.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from dra_api.console import printable
from dra_api.gates import FeatureGates
from dra_api.releases import BUILT, NEWEST
from dra_api.resource import Device, ResourceSlice
from dra_cel import CelError, CompileError, EvaluationError, PreparedDevice, Selector, device_selectors, prepare

from dra_operator.commands import add_files_argument
from dra_operator.wording import listed

from .file_items import BadInput
from .object_files import Case, Fields, add_cases_argument, answer_all, of_kind, read_cases, read_objects

_BLOCK_EVALUATIONS: Final = 50  # evaluations between two looks at the clock
_QUICK_SECONDS: Final = 0.001  # seconds per evaluation, up to which blocks are worth it
_ENOUGH_SECONDS: Final = 1.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cases_argument(parser)
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="time N evaluations of each case")
    parser.add_argument("-e", "--expression", help="a selector to try on the devices of -f")
    add_files_argument(parser, "ResourceSlices")
    parser.add_argument("--new", action="store_true", help="check as API validation of a new object does")
    parser.add_argument(
        "--kubernetes-version",
        choices=BUILT,
        help=f"with -e: the release whose feature gates count (default: {NEWEST})",
    )
    parser.add_argument(
        "--no-consumable-capacity", action="store_true", help="with feature gate DRAConsumableCapacity off"
    )
    parser.add_argument("--list-attributes", action="store_true", help="with feature gate DRAListTypeAttributes on")


def run(options: argparse.Namespace) -> int:
    """Answer; 0 when everything could be answered, 1 for a selector that does not compile, 2 for unusable input."""
    try:
        if (options.cases is None) == (options.expression is None) or bool(options.file) == bool(options.cases):
            raise BadInput("give either a file of cases, or -e EXPRESSION and devices to try it on with -f FILE")
        if options.repeat < 0:
            raise BadInput(f"--repeat: expected at least 0, got {options.repeat}")
        chosen = (options.new, options.kubernetes_version, options.no_consumable_capacity, options.list_attributes)
        if options.cases is not None and any(chosen):
            raise BadInput(
                "--new, --kubernetes-version and feature gates: only for -e EXPRESSION; "
                "a case names its environment itself"
            )
        return _try_out(options) if options.cases is None else _answer_file(options.cases, options.repeat)
    except BadInput as error:
        print(f"dra-operator cel: {error}", file=sys.stderr)
        return 2


# --- cases ------------------------------------------------------------------------------------


def _answer_file(path: str, repeat: int) -> int:
    cases, shared = read_cases(path)
    devices = Fields(path, shared).optional("devices", dict[str, Any]) or {}
    return answer_all("cel", path, cases, lambda where, case: _answer(Fields(where, case), devices, repeat))


def _answer(case: Fields, devices: Case, repeat: int) -> dict[str, Any]:
    """What our CEL says about one case. Raises BadInput."""
    lists = bool(case.optional("listTypeAttributes", bool))
    environment = device_selectors(
        new=case.optional("env", str) == "NewExpressions",
        consumable_capacity=bool(case.optional("consumableCapacity", bool)),
        list_attributes=lists,
    )
    answer: dict[str, Any] = dict.fromkeys(
        ("name", "kind", "match", "error_kind", "message", "max_cost", "actual_cost"), None
    )
    answer["name"] = case.optional("name", str)
    try:
        selector = Selector(case.required("expression", str), environment)
    except CompileError as error:
        return answer | {"kind": "compile_error", "error_kind": error.kind, "message": error.message}
    device = _case_device(case, devices, lists)
    verdict, cost = selector.explain(device, case.optional("costLimit", int))
    answer |= {"max_cost": selector.max_cost, "output_type": str(selector.output_type)}
    if device.fault is None:
        answer["actual_cost"] = cost
    if isinstance(verdict, EvaluationError):
        answer |= {"kind": "runtime_error", "error_kind": verdict.kind, "message": verdict.message}
    else:
        answer |= {"kind": "match", "match": verdict}
    if repeat > 0:
        answer["micros"] = round(_micros(selector, device, repeat), 3)
    return answer


def _case_device(case: Fields, devices: Case, lists: bool) -> PreparedDevice:
    """The device of a case: the object itself, or its name in the table. Raises BadInput."""
    device = case.source.get("device")
    if isinstance(device, str):
        if device not in devices:
            raise BadInput(f"{case.where}: device: the file has no device {device!r}; it has {listed(devices, 10)}")
        device = devices[device]
    found = Fields(case.where, {"device": device})
    fields = Fields(f"{case.where}: device", found.required("device", dict[str, Any]))
    return prepare(fields.optional("driver", str) or "", found.required("device", Device), list_attributes=lists)


def _micros(selector: Selector, device: PreparedDevice, repeat: int) -> float:
    """Microseconds per evaluation, as the operator evaluates: the mean of ``repeat`` runs, of fewer after a second."""
    started = time.perf_counter()
    done = 0
    while done < repeat and (elapsed := time.perf_counter() - started) < _ENOUGH_SECONDS:
        block = min(repeat - done, _BLOCK_EVALUATIONS if elapsed < done * _QUICK_SECONDS else 1)
        for _ in range(block):
            try:
                selector.matches(device)
            except CelError:
                continue
        done += block
    return (time.perf_counter() - started) / done * 1e6


# --- one expression ---------------------------------------------------------------------------


def _try_out(options: argparse.Namespace) -> int:
    """Print a verdict for every device of the slices in the files. Raises BadInput."""
    slices = of_kind(ResourceSlice, read_objects(options.file))
    gates = FeatureGates.of({}, BUILT.get(options.kubernetes_version, NEWEST))
    environment = device_selectors(
        new=options.new,
        consumable_capacity=gates.consumable_capacity and not options.no_consumable_capacity,
        list_attributes=options.list_attributes,
    )
    try:
        selector = Selector(options.expression, environment)
    except CompileError as error:
        print(f"the selector does not compile: {error.message}\n{error.excerpt()}", file=sys.stderr)
        return 1
    cost = "unbounded" if selector.max_cost >= 2**64 - 1 else str(selector.max_cost)
    print(f"selector: type {selector.output_type}, costs at most {cost} of {environment.cost_limit}")
    counts = {"matches": 0, "does not match": 0, "fails": 0}
    for slice_ in slices:
        spec = slice_.spec
        for device in spec.devices or ():
            prepared = prepare(spec.driver, device, list_attributes=options.list_attributes)
            word, detail = _verdict(selector, prepared)
            counts[word] += 1
            print(printable(f"{spec.driver}/{spec.pool.name}/{device.name}: {word}{detail}"))
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 0


def _verdict(selector: Selector, device: PreparedDevice) -> tuple[str, str]:
    """The verdict in words. A failure names what the selector asks for and the device does not publish."""
    verdict, cost = selector.explain(device)
    if not isinstance(verdict, EvaluationError):
        return ("matches" if verdict else "does not match"), f" (cost {cost})"
    published = device.published()
    missing = sorted({str(reference) for reference in selector.references} - set(published))
    detail = f": {verdict.message}"
    if missing:
        detail += f"; it does not publish {', '.join(missing)}, but {', '.join(published) or 'nothing'}"
    return "fails", detail
