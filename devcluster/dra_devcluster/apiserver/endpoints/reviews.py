"""Kinds that are asked and never stored: tokens, and reviews of tokens, of users and of what a user may do.

``serviceaccounts/<name>/token`` makes a token for a service account, which may be bound to a pod, a node or a secret.
One that is bound to a pod names the pod's node as well: that is how admission knows on which node a plugin runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import orjson
from aiohttp import web
from dra_api.values import format_time

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.authorization import Attributes, User
from dra_devcluster.apiserver.endpoints.binding import bind
from dra_devcluster.apiserver.endpoints.call import Call
from dra_devcluster.apiserver.errors import Json, StatusError, bad_request, conflict, invalid, not_allowed
from dra_devcluster.apiserver.faults import invalid as invalid_field
from dra_devcluster.apiserver.identity import ISSUER, InvalidToken, reference
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.structure import Fault
from dra_devcluster.apiserver.verbs.checks import check_version
from dra_devcluster.apiserver.verbs.read import get
from dra_devcluster.apiserver.wire.bodies import respond
from dra_devcluster.clock import now

_REVIEWS = "authorization.k8s.io"


async def read_question(call: Call) -> Json:
    """The body of a request to a resource that is only asked. Raises 400, 405, 413, 415."""
    body = await call.read_posted(call.resource.group, call.resource.kind)
    check_version(call.write, body)
    body.setdefault("spec", {})
    return body


def answer(call: Call, body: Json, status: Json) -> web.Response:
    """The question with its answer in the status."""
    body.setdefault("metadata", {})["creationTimestamp"] = None
    body["status"] = status
    return respond(orjson.dumps(body), call.want, 201, call.warnings())


async def own_access(call: Call) -> web.StreamResponse:
    """What the user of the request may do."""
    body = await read_question(call)
    return _judged(call, body, list(_spec_faults(body["spec"])), call.user)


async def access_of_subject(call: Call) -> web.StreamResponse:
    """What another user may do, who need not exist."""
    body = await read_question(call)
    return _judged(call, body, list(_subject_faults(body["spec"])), _subject(body["spec"]))


async def access_in_namespace(call: Call) -> web.StreamResponse:
    """What another user may do in the namespace of the request."""
    body = await read_question(call)
    spec = body["spec"]
    wrong = list(_subject_faults(spec))
    namespace = dig(spec, "resourceAttributes.namespace") or ""
    if spec.get("resourceAttributes") is not None and namespace != call.target.namespace:
        path = "spec.resourceAttributes.namespace"
        wrong.append(faults.invalid(path, namespace, "must match metadata.namespace"))
    if spec.get("nonResourceAttributes") is not None:
        given = spec["nonResourceAttributes"]
        wrong.append(faults.invalid("spec.nonResourceAttributes", given, "disallowed on this kind of request"))
    return _judged(call, body, wrong, _subject(spec))


async def own_rules(call: Call) -> web.StreamResponse:
    """The rules that apply to the user of the request in a namespace."""
    body = await read_question(call)
    namespace = dig(body, "spec.namespace")
    if not namespace:
        raise bad_request("no namespace on request")
    resources: list[Json] = []
    urls: list[Json] = []
    for rule in call.registry.authorization.rules_of(call.user, namespace):
        verbs = list(rule.verbs)
        if rule.resources:
            line = {"verbs": verbs, "apiGroups": list(rule.groups), "resources": list(rule.resources)}
            resources.append({**line, "resourceNames": list(rule.names)} if rule.names else line)
        if rule.urls:
            urls.append({"verbs": verbs, "nonResourceURLs": list(rule.urls)})
    return answer(call, body, {"resourceRules": resources, "nonResourceRules": urls, "incomplete": False})


def _judged(call: Call, body: Json, wrong: list[Fault], user: User) -> web.Response:
    if wrong:
        raise invalid(_REVIEWS, "", "", wrong)  # the real server names no kind here
    decision = call.registry.authorization.judge(_question(body["spec"], user))
    status: Json = {"allowed": decision.allowed}
    return answer(call, body, {**status, "reason": decision.reason} if decision.reason else status)


def _question(spec: Json, user: User) -> Attributes:
    if (asked := spec.get("nonResourceAttributes")) is not None:
        return Attributes(user, asked.get("verb", ""), path=asked.get("path", "") or "/")
    asked = spec["resourceAttributes"]
    return Attributes(
        user,
        asked.get("verb", ""),
        asked.get("group", ""),
        asked.get("version", ""),
        asked.get("resource", ""),
        asked.get("subresource", ""),
        asked.get("namespace", ""),
        asked.get("name", ""),
        field_selector=",".join(_requirements(asked.get("fieldSelector") or {})),
    )


def _requirements(selector: Json) -> Iterator[str]:
    """The part of a field selector that narrows: equality with one value."""
    if raw := selector.get("rawSelector"):
        yield raw
    for requirement in selector.get("requirements") or ():
        values: list[str] = requirement.get("values") or []
        if requirement.get("operator") == "In" and len(values) == 1:
            yield f"{requirement.get('key')}={values[0]}"


def _subject(spec: Json) -> User:
    extra = {key.lower(): tuple(values or ()) for key, values in (spec.get("extra") or {}).items()}
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)


def _subject_faults(spec: Json) -> Iterator[Fault]:
    yield from _spec_faults(spec)
    if not spec.get("user") and not spec.get("groups"):
        yield faults.invalid("spec.user", "", "at least one of user or group must be specified")


def _spec_faults(spec: Json) -> Iterator[Fault]:
    resource, url = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and url is not None:
        why = "cannot be specified in combination with resourceAttributes"
        yield faults.invalid("spec.nonResourceAttributes", url, why)
    if resource is None and url is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield faults.invalid("spec.resourceAttributes", None, why)


ACCESS_REVIEWS: dict[tuple[str, str], Callable[[Call], Awaitable[web.StreamResponse]]] = {
    (_REVIEWS, "localsubjectaccessreviews"): access_in_namespace,
    (_REVIEWS, "selfsubjectaccessreviews"): own_access,
    (_REVIEWS, "subjectaccessreviews"): access_of_subject,
    (_REVIEWS, "selfsubjectrulesreviews"): own_rules,
}


async def self_review(call: Call) -> web.StreamResponse:
    return answer(call, await read_question(call), {"userInfo": call.user.info})


async def token_review(call: Call) -> web.StreamResponse:
    body = await read_question(call)
    audiences = body["spec"].get("audiences") or [ISSUER]
    try:
        user = call.tokens.user_of_token(body["spec"].get("token", ""), audiences)
    except InvalidToken as error:
        said = "invalid bearer token"
        text = said if str(error) == said else f"[{said}, {error}]"
        return answer(call, body, {"user": {}, "error": text})
    return answer(call, body, {"authenticated": True, "user": user.info, "audiences": audiences})


async def component_statuses(call: Call) -> web.StreamResponse:
    """Deprecated and always empty: this control plane has no separate components."""
    if call.request.method != "GET" or call.target.name:
        raise not_allowed()
    listed = {"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": []}
    return respond(orjson.dumps(listed), call.want)


_AUTHENTICATION = "authentication.k8s.io"
VIRTUAL: dict[tuple[str, str], Callable[[Call], Awaitable[web.StreamResponse]]] = {
    **ACCESS_REVIEWS,
    (_AUTHENTICATION, "selfsubjectreviews"): self_review,
    (_AUTHENTICATION, "tokenreviews"): token_review,
    ("", "bindings"): bind,
    ("", "componentstatuses"): component_statuses,
}


_GROUP = "authentication.k8s.io"
_SHORTEST_LIFE_SECONDS, _LONGEST_LIFE_SECONDS, _USUAL_LIFE_SECONDS = 600, 2**32, 3600
_BOUND_TO = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


async def token(call: Call) -> web.StreamResponse:
    """Answer a TokenRequest. Raises 400, 404, 405, 409, 422."""
    body = await call.read_posted(_GROUP, "TokenRequest")
    account = get(call.registry, call.resource, call.target.namespace, call.target.name).decode()
    body["spec"] = spec = body.get("spec") or {}
    spec["audiences"] = spec.get("audiences") or [ISSUER]
    spec.setdefault("expirationSeconds", _USUAL_LIFE_SECONDS)
    _check(call, body, account)
    bound = _bound(call, spec["boundObjectRef"], account) if spec.get("boundObjectRef") else {}
    issued, expires = call.tokens.issue(account, spec["expirationSeconds"], spec["audiences"], bound)
    meta = account["metadata"]
    named = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
    body |= {
        "kind": "TokenRequest",
        "apiVersion": f"{_GROUP}/v1",
        "metadata": {**named, "creationTimestamp": now()},
        "status": {"token": issued, "expirationTimestamp": format_time(datetime.fromtimestamp(expires, UTC))},
    }
    return respond(orjson.dumps(body), call.want, 201, call.warnings())


def _check(call: Call, body: Json, account: Json) -> None:
    """Raises a 409 or 422 when the request is for another account, or for an impossible time."""
    meta = body.get("metadata") or {}
    for key, what in (("name", call.target.name), ("namespace", call.target.namespace)):
        if meta.get(key) and meta[key] != what:
            text = f"must match the service account {key} if specified"
            raise _refusal(invalid_field(f"metadata.{key}", meta[key], text), call.target.name)
    uid = account["metadata"]["uid"]
    if meta.get("uid") and meta["uid"] != uid:
        why = f"the UID in the token request ({meta['uid']}) does not match the UID of the service account ({uid})"
        raise conflict(_GROUP, "TokenRequest", call.target.name, why)
    seconds = body["spec"]["expirationSeconds"]
    if seconds < _SHORTEST_LIFE_SECONDS:
        text = "may not specify a duration less than 10 minutes"
        raise _refusal(invalid_field("spec.expirationSeconds", seconds, text))
    if seconds > _LONGEST_LIFE_SECONDS:
        text = "may not specify a duration larger than 2^32 seconds"
        raise _refusal(invalid_field("spec.expirationSeconds", seconds, text))


def _refusal(fault: Fault, name: str = "") -> StatusError:
    return invalid(_GROUP, "TokenRequest", name, [fault])


def _bound(call: Call, wanted: Json, account: Json) -> Json:
    """What the token is bound to, as it says it. Raises 400, 404, 409."""
    kind, name = wanted.get("kind", ""), wanted.get("name", "")
    version = wanted.get("apiVersion", "")
    plural = _BOUND_TO.get(kind) if version in ("", "v1") else None
    if plural is None:
        group, _, short = version.rpartition("/")
        raise bad_request(f"cannot bind token to object of type {group}/{short}, Kind={kind}")
    namespace = "" if kind == "Node" else call.target.namespace
    obj = get(call.registry, call.registry.resource("", "v1", plural), namespace, name).decode()
    bound = {kind.lower(): reference(obj["metadata"])}
    if kind == "Pod":
        own = account["metadata"]["name"]
        if (dig(obj, "spec.serviceAccountName") or "default") != own:
            why = "to pod running with different serviceaccount name."
            raise bad_request(f'cannot bind token for serviceaccount "{own}" {why}')
        bound |= _node_of(call, dig(obj, "spec.nodeName"))
    if wanted.get("uid") and wanted["uid"] != obj["metadata"]["uid"]:
        why = (
            f"the UID in the bound object reference ({wanted['uid']}) does not match the UID in record. The object "
            "might have been deleted and then recreated"
        )
        raise conflict("", kind, name, why)
    return bound


def _node_of(call: Call, name: str | None) -> Json:
    if not name:
        return {}
    node = call.registry.store.collection("", "nodes").get("", name)
    return {"node": {"name": name} if node is None else {"name": name, "uid": node.uid}}
