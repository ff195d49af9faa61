"""Makes repairs, by conditional writes."""

from __future__ import annotations

from dra_api.api_resources import PODS, RESOURCE_CLAIMS
from dra_kube import Api, KubeError, NotFound

from dra_operator.kubectl.doctor.trouble import Repair


async def repaired(api: Api, repair: Repair) -> str:
    """Return why it was not made, or not completely; an empty text if it was."""
    made = 0
    try:
        for name, uid in repair.gone:
            if await _exists(api, repair.namespace, name, uid):
                return f"not repaired: pod {name} exists"
        if repair.deleted is not None:
            uid, version = repair.deleted
            await api.delete(RESOURCE_CLAIMS, repair.name, repair.namespace, uid=uid, resource_version=version)
            made += 1
        for part, operations in repair.patches:
            body = list(operations)
            await api.patch(RESOURCE_CLAIMS, repair.name, body, repair.namespace, kind="json", subresource=part or None)
            made += 1
    except NotFound:
        return "" if made else "nothing to repair any more: the claim is gone"
    except KubeError as error:
        if made:
            return f"repaired in part; run doctor again, the claim may have changed: {error}"
        return f"not repaired, the claim may have changed: {error}"
    return ""


async def _exists(api: Api, namespace: str, name: str, uid: str) -> bool:
    """Whether the pod of this UID is there after all: the list may have been older than the reservation."""
    try:
        pod = await api.get(PODS, name, namespace)
    except NotFound:
        return False
    return bool(pod["metadata"].get("uid") == uid)
