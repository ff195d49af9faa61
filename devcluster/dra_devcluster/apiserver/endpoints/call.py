"""The parts of one request to a resource."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from dra_devcluster.apiserver.admission import Policies
from dra_devcluster.apiserver.authorization import User
from dra_devcluster.apiserver.errors import Json, StatusError, invalid_options, not_allowed
from dra_devcluster.apiserver.faults import too_long, unsupported
from dra_devcluster.apiserver.identity.tokens import Tokens
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.served.deprecations import deprecations
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.store import Stored
from dra_devcluster.apiserver.structure import Fault, Resource
from dra_devcluster.apiserver.verbs.checks import check_fields
from dra_devcluster.apiserver.wire.bodies import Wanted, media_type, parse_object, read_body, respond, wanted
from dra_devcluster.apiserver.wire.target import Target

from .render import render

_MANAGER_CHARACTERS = 128
_VALIDATIONS = ("", "Ignore", "Strict", "Warn")
_VERBS = {"POST": "Create", "PUT": "Update", "PATCH": "Patch"}


@dataclass(slots=True)
class Call:
    """A request with its target and its user."""

    request: web.BaseRequest
    target: Target
    resource: Resource
    registry: Registry
    tokens: Tokens
    user: User
    query: Json
    policies: Policies
    want: Wanted = field(init=False)
    write: Write = field(init=False)

    def __post_init__(self) -> None:
        self.want = wanted(self.request.headers.get("Accept", ""))
        writes = self.request.method in _VERBS
        dry_run = self.request.query.getall("dryRun", []) if writes else []
        if writes and (faults := list(self._option_faults(dry_run))):
            raise self.invalid_options(*faults)
        self.write = Write(
            self.registry,
            self.resource,
            namespace=self.target.namespace,
            subresource=self.target.subresource,
            user=self.user,
            manager=self._manager(),
            dry_run=bool(dry_run),
            warnings=deprecations(self.resource, self.registry.release),
            policies=self.policies,
        )

    def _manager(self) -> str:
        manager: str = self.query.get("fieldManager", "")
        return (
            manager or self.request.headers.get("User-Agent", "").partition("/")[0][:_MANAGER_CHARACTERS] or "unknown"
        )

    def _option_faults(self, dry_run: Sequence[str]) -> Iterator[Fault]:
        if len(self.query.get("fieldManager", "")) > _MANAGER_CHARACTERS:
            yield too_long("fieldManager", _MANAGER_CHARACTERS)
        if not set(dry_run) <= {"All"}:
            yield unsupported("dryRun", dry_run, ["All"])
        validation = self.query.get("fieldValidation", "")
        if validation not in _VALIDATIONS:
            yield unsupported("fieldValidation", validation, _VALIDATIONS)

    def invalid_options(self, *faults: Fault) -> StatusError:
        """The refusal of parameters of a write; a deletion has options of its own (`verbs.delete`)."""
        return invalid_options(_VERBS[self.request.method], *faults)

    def need(self, verb: str) -> None:
        """Raises a 405 unless the resource (or sub-resource) has the verb."""
        sub = self.resource.subresources.get(self.target.subresource)
        verbs = sub.verbs if sub else self.resource.verbs
        if verb not in verbs:
            raise not_allowed()

    async def read_object(self) -> Json:
        """The object in the body. Raises 400, 413, 415."""
        return parse_object(await read_body(self.request), media_type(self.request))

    async def read_posted(self, group: str, kind: str) -> Json:
        """The body of a POST that is of a kind of its own (``v1`` of its group). Raises 400, 405, 413, 415."""
        if self.request.method != "POST":
            raise not_allowed()
        body = await self.read_object()
        schema = self.registry.structure.schema(group, "v1", kind)
        if schema is not None:
            check_fields(schema, body, self.query.get("fieldValidation", ""), kind, self.write)
        self.write.admit("CREATE", body, posted=(group, "v1", kind))
        return body

    def answer(self, stored: Stored, code: int = 200) -> web.Response:
        """The object as an answer, with the warnings of this request."""
        return respond(render(self.resource, stored, self.want, self.query), self.want, code, self.warnings())

    def warnings(self) -> list[tuple[str, str]]:
        """A Warning header for each text."""
        texts = [text.replace("\\", "\\\\").replace('"', '\\"') for text in self.write.warnings]
        return [("Warning", f'299 - "{text}"') for text in texts]
