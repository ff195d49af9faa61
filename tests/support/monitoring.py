"""The alerts and the dashboard of the manifests."""

from __future__ import annotations

import json

import yaml
from kubectl import ROOT

_FOLDER = ROOT / "manifests" / "components" / "monitoring"
SPEC = yaml.safe_load((_FOLDER / "alerts.yaml").read_text())["spec"]
"""The content of a rule file of Prometheus."""
RULES = [rule for group in SPEC["groups"] for rule in group["rules"]]
PANELS = json.loads((_FOLDER / "dashboard.json").read_text())["panels"]
