"""What an admission check that knows devices saves, beside a queue that admits by quota alone.

    PYTHONPATH=tests/support python benchmarks/admission.py [--jobs 1000] [--nodes 40] [--seed 1]

Random jobs of one to four pods, each with a claim for one to eight devices, some of one model, are all submitted at the
start. Nodes have eight devices. The quota is the number of devices. The operator places the pods; the model of Kueue
(``tests/support/kueue_model.py``) reserves quota, evicts and requeues as the real one.
"""

from __future__ import annotations

import argparse
import logging
from statistics import median

from admission_run import Result, Run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs (%(default)s)")
    parser.add_argument("--nodes", type=int, default=40, help="nodes with eight devices (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random jobs (%(default)s)")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    results = [
        Run(options.jobs, options.nodes, options.seed, is_checked=is_checked).play() for is_checked in (False, True)
    ]
    print("| | by quota alone | with the check |\n|---|---|---|")
    for title, text in (
        ("jobs admitted whose pods cannot start then", lambda it: str(len(it.blocked))),
        ("jobs evicted because their pods did not start", lambda it: str(it.timeouts)),
        ("quota held in vain, device hours", lambda it: f"{it.in_vain / 3600:.2f}"),
        ("the same, percent of the use", lambda it: f"{100 * it.in_vain / it.used:.2f}"),
        ("until all jobs have ended, hours", lambda it: f"{it.seconds / 3600:.2f}"),
        ("retries", lambda it: str(it.retries)),
        ("from freed devices to the admission of a job that waited for them, p50 and longest, s", _delays),
    ):
        print(f"| {title} | {' | '.join(map(text, results))} |", flush=True)


def _delays(result: Result) -> str:
    return f"{median(result.delays):.2f}, {max(result.delays):.2f}" if result.delays else "-"


if __name__ == "__main__":
    main()
