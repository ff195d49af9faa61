"""Judge what pip-audit reports about the locks: ``.ci/audit`` runs it.

    python supply/audit.py pip-audit --requirement requirements-image.lock --format json

pip-audit ends well when it could ask about no package at all: a package that the index does not answer for counts as
skipped. Here that is no success. The exit code says which it is:

0   each package was looked up, none has a known vulnerability
1   a package has a known vulnerability; package, advisory and the versions that mend it are printed
2   pip-audit failed, or its report cannot be read
75  not audited: the service was not reached, or does not know a package. Nothing is known about those
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from typing import Any

CLEAN, VULNERABLE, FAILED, NOT_AUDITED = 0, 1, 2, 75  # 75: a temporary failure, in sysexits.h
UNREACHABLE = re.compile(
    r"Max retries exceeded|Could not connect|not redirecting|Failed to fetch|Read timed out|Timeout|ConnectionError"
    r"|ServiceError|HTTPError"
)


def judge(report: Any) -> tuple[int, list[str]]:
    """The exit code for pip-audit's JSON, and the lines that say why. A vulnerability outweighs what was skipped."""
    found, skipped, clean = [], [], 0
    for package in report["dependencies"]:
        if "skip_reason" in package:
            skipped.append(package["name"])
            continue
        clean += not package["vulns"]
        for flaw in package["vulns"]:
            fixed = ", ".join(flaw["fix_versions"]) or "no version yet"
            found.append(f"{package['name']} {package['version']}: {flaw['id']}, fixed in {fixed}")
    lines = [f"VULNERABLE: {line}" for line in found]
    total = len(report["dependencies"])
    if skipped:
        lines.append(f"NOT AUDITED: the service does not know {len(skipped)} of {total} packages: {', '.join(skipped)}")
    if clean:
        lines.append(f"{clean} of {total} packages have no known vulnerability")
    if not total:
        return FAILED, ["the report names no package"]
    return VULNERABLE if found else NOT_AUDITED if skipped else CLEAN, lines


def audit(command: list[str]) -> tuple[int, list[str]]:
    """Run pip-audit and judge its report; without a report, its last words say why."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return FAILED, [f"FAILED: {error}"]
    try:
        return judge(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        words = done.stderr.strip() or f"pip-audit ended with {done.returncode} and no report"
    last = words.splitlines()[-1]
    if UNREACHABLE.search(words):
        return NOT_AUDITED, [f"NOT AUDITED: nothing was looked up, the service was not reached: {last}"]
    return FAILED, [f"FAILED: {last}"]


def main() -> int:
    """Print the verdict, and end with its code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="PIP-AUDIT", help="the program, or what starts it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args()
    code, lines = audit([given.program, *given.arguments])
    for line in lines:
        print(f"audit: {line}", file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
