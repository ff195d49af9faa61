"""The DeviceTaintRule that a command line describes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from dra_api.codec import to_dict
from dra_api.meta import ObjectMeta
from dra_api.releases.release import Release
from dra_api.resource import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from dra_api.validation import summary, validate_device_taint_rule

from dra_operator.kubectl.answer import ExitCode, Problem

NAME_CHARACTERS = 253


def rule_of(taint: DeviceTaint, selector: DeviceTaintSelector, purpose: str) -> DeviceTaintRule:
    """With a name that follows from what it selects and its purpose. Raises Problem for what the API server refuses."""
    words = filter(None, (selector.driver, selector.pool, selector.device, purpose))
    name = re.sub(r"[^a-z0-9.-]+", "-", "-".join(words).lower())[:NAME_CHARACTERS].strip("-.")
    spec = DeviceTaintRuleSpec(device_selector=selector, taint=taint)
    rule = DeviceTaintRule(metadata=ObjectMeta(name=name), spec=spec)
    if errors := validate_device_taint_rule(rule):
        raise Problem(summary(errors), ExitCode.USAGE)
    return rule


def manifest(rule: DeviceTaintRule, release: Release) -> Iterator[str]:
    """Its lines for kubectl apply; the API server sets the time."""
    version = "v1" if release >= Release.V1_37 else "v1beta2" if release >= Release.V1_36 else "v1alpha3"
    spec = to_dict(rule.spec)
    spec["taint"].pop("timeAdded", None)
    head = {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule"}
    body = {**head, "metadata": {"name": rule.metadata.name}, "spec": spec}
    yield from yaml.safe_dump(body, sort_keys=False).splitlines()
