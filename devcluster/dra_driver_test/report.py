"""Results for people and machines: lines and a summary, JSON, and JUnit XML."""

from __future__ import annotations

import json
import textwrap
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from importlib import metadata

from .check import Check
from .runner import Result, Verdict

_NAME_WIDTH = 58  # columns of the table
_MARGIN = " " * 11
_UNPRINTABLE = {code: None for code in range(32) if code not in (9, 10, 13)}  # that XML cannot hold


def line(result: Result) -> str:
    """One line of the table, with what the check says below it."""
    head = f"{result.verdict:10} {result.check.name:{_NAME_WIDTH}} {result.seconds:6.2f} s"
    if result.verdict is Verdict.PASSED:
        return head
    text = f"{head}\n{textwrap.indent(result.text, _MARGIN)}"
    if result.verdict in (Verdict.SKIPPED, Verdict.NOT_JUDGED):
        return text
    return f"{text}\n{_MARGIN}rule: {result.check.summary} ({', '.join(result.check.references)})"


def summary(results: Sequence[Result], seconds: float) -> str:
    """The last line: how many checks ended how, and how long all took; several may have run at the same time."""
    counts = Counter(result.verdict for result in results)
    return f"{', '.join(f'{counts[verdict]} {verdict}' for verdict in Verdict)} in {seconds:.1f} s"


def listing(checks: Sequence[Check]) -> str:
    """The checks with their explanations."""
    return "\n\n".join(
        f"{one.name} ({one.level}; {', '.join(one.references)})\n    " + one.explanation.replace("\n", "\n    ")
        for one in checks
    )


def as_json(driver: str, results: Sequence[Result]) -> str:
    """Everything, for programs."""
    checks = [
        {
            "name": one.check.name,
            "verdict": one.verdict,
            "level": one.check.level,
            "text": one.text,
            "seconds": round(one.seconds, 3),
            "explanation": one.check.explanation,
            "references": one.check.references,
        }
        for one in results
    ]
    counts = Counter(one.verdict for one in results)
    return json.dumps(
        {
            "driver": driver,
            "version": metadata.version("kopf-dra"),
            "counts": {verdict: counts[verdict] for verdict in Verdict},
            "checks": checks,
        },
        indent=2,
    )


def as_junit(driver: str, results: Sequence[Result]) -> str:
    """As CI systems read it: a warning is a passed test with its text as output, and what is not judged an error."""
    counts = Counter(one.verdict for one in results)
    suite = ElementTree.Element(
        "testsuite",
        name=f"dra-driver-test {driver}",
        tests=str(len(results)),
        failures=str(counts[Verdict.FAILED]),
        skipped=str(counts[Verdict.SKIPPED]),
        errors=str(counts[Verdict.NOT_JUDGED]),
        time=f"{sum(one.seconds for one in results):.3f}",
    )
    for one in results:
        noun, _, name = one.check.name.partition(".")
        case = ElementTree.SubElement(suite, "testcase", classname=noun, name=name, time=f"{one.seconds:.3f}")
        text = one.text.translate(_UNPRINTABLE)
        if one.verdict is Verdict.FAILED:
            ElementTree.SubElement(case, "failure", message=text.partition("\n")[0]).text = text
        elif one.verdict is Verdict.NOT_JUDGED:
            ElementTree.SubElement(case, "error", type=one.verdict, message=text)
        elif one.verdict is Verdict.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=text)
        elif one.verdict is Verdict.WARNED:
            ElementTree.SubElement(case, "system-out").text = f"warning: {text}"
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
