"""The examples for Kueue fit together, and fit what the page says about Kueue's configuration.

Kueue's own kinds are not known here; that Kueue takes them was tried by hand (docs/reliability.md).
"""

from __future__ import annotations

import re
from typing import Any

from command import ROOT
from dra_api import yaml_text
from dra_operator.scheduling.state import GATE


def documents(path: str) -> dict[str, Any]:
    """The objects of a file by kind."""
    return {body["kind"]: body for body in yaml_text.load_all((ROOT / path).read_text())}


QUEUE = documents("manifests/examples/kueue/queue.yaml")
JOB = documents("manifests/examples/kueue/job.yaml")


def mappings() -> list[dict[str, Any]]:
    """What the page says to write into Kueue's configuration."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "queues.md").read_text(), re.DOTALL)
    (configuration,) = [body for block in blocks if (body := yaml_text.load(block)).get("kind") == "Configuration"]
    found: list[dict[str, Any]] = configuration["resources"]["deviceClassMappings"]
    return found


def test_the_job_waits_for_the_queue_and_then_at_our_gate() -> None:
    job = JOB["Job"]
    queue = QUEUE["LocalQueue"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]
    assert job["spec"]["suspend"] is True
    assert job["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    assert queue["spec"]["clusterQueue"] == QUEUE["ClusterQueue"]["metadata"]["name"]


def test_the_queue_has_quota_for_the_class_that_the_jobs_pods_ask_for() -> None:
    template = JOB["ResourceClaimTemplate"]
    (use,) = JOB["Job"]["spec"]["template"]["spec"]["resourceClaims"]
    assert use["resourceClaimTemplateName"] == template["metadata"]["name"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    device_class = request["exactly"]["deviceClassName"]
    assert documents("manifests/plugin/deviceclass.yaml")["DeviceClass"]["metadata"]["name"] == device_class
    (resource,) = [mapping["name"] for mapping in mappings() if device_class in mapping["deviceClassNames"]]
    (group,) = QUEUE["ClusterQueue"]["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == QUEUE["ResourceFlavor"]["metadata"]["name"]
    assert group["coveredResources"] == [quota["name"] for quota in flavor["resources"]]
    assert resource in group["coveredResources"]
