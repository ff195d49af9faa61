"""``--list``: what the file finds on this host, as YAML for a person."""

from __future__ import annotations

import yaml
from dra_api.codec import to_dict

from .driver import edits_of
from .scan import Found


def listing(found: Found) -> str:
    """The devices as they would be published, with what containers get, and why others are left out."""
    devices = [
        {"device": to_dict(made.published), "containerEdits": to_dict(edits_of(made))}
        for made in found.devices.values()
    ]
    return yaml.safe_dump({"devices": devices, "leftOut": list(found.problems)}, sort_keys=False, width=120)
