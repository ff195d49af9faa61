"""Prints the reference page of the settings, ``docs/operator-settings.md``; ``make settings`` writes it."""

from __future__ import annotations

from .settings import FORMER_NAMES, described

HEAD = """# Settings of the operator

This page is made from `operator/dra_operator/app/settings/settings.py` by `make settings`; a test compares the two.

Every setting can be given to `dra-operator run` in three ways. A flag has precedence over the environment variable, the
variable over the file, the file over the default.

| Where | How |
|---|---|
| flag | `--metrics-port 8080`; a switch: `--leader-elect`, `--no-leader-elect`, `--leader-elect=false` |
| environment variable | `DRA_OPERATOR_METRICS_PORT=8080` |
| file | `metrics-port: 8080` in the YAML file that `--config FILE` or `DRA_OPERATOR_CONFIG` names |

A wrong value ends the operator with exit code 2 and one line. It names the setting, the value, where the value came
from, and what is allowed. A flag, a variable that begins with `DRA_OPERATOR_`, or a key in the file that is not a
setting ends it as well, and the line names the closest setting. All times are in seconds.

Kubernetes gives each pod variables for the Services in its namespace. A Service `dra-operator-metrics` would bring
`DRA_OPERATOR_METRICS_PORT=tcp://...`, hence `enableServiceLinks: false` in `manifests/operator`.
Variables of other Services are left alone.

`-v` stands for `--verbosity 1`, `-vv` for `--verbosity 2`.

| Setting | Default | Allowed | Meaning |
|---|---|---|---|
"""

FORMER_HEAD = """
## Former names

A setting may still be given by the name that it had before, in each of the three ways and in the chart's values. The
operator warns at its start. Both names together end it with exit code 2.

| Former name | Setting |
|---|---|
"""


def page() -> str:
    """The whole page."""
    lines = (
        f"| `{setting.name}` | `{setting.default}` | {setting.allowed} | {setting.meaning} |\n"
        for setting in described()
    )
    former = (f"| `{name}` | `{now}` |\n" for name, now in FORMER_NAMES.items())
    return HEAD + "".join(lines) + FORMER_HEAD + "".join(former)


if __name__ == "__main__":
    print(page(), end="")
