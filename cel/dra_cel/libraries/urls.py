"""URLs: ``url("https://a:80/b?c=d")`` and its parts, as Go's net/url splits them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote, unquote_plus

from dra_api.cache import remember_short

from dra_cel.basics.charges import traversal
from dra_cel.basics.declarations import Function, glob, method
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, STRING, URL, Type, list_of, map_of
from dra_cel.basics.values import Opaque

from .formatting import quoted

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
_USER: Final = re.compile(r"[A-Za-z0-9\-._~:!$&'()*+,;=%@]*", re.ASCII)
_HOST_SIGNS: Final = "-_.~!$&'()*+,;=:[]<>\""
_HOST_CHARACTER: Final = rf"[A-Za-z0-9{re.escape(_HOST_SIGNS)}]|[^\x00-\x7f]|%[89A-Fa-f][0-9A-Fa-f]|%25"
_HOST: Final = re.compile(f"(?:{_HOST_CHARACTER})*", re.ASCII)
_ZONE: Final = re.compile(
    "|".join(
        [f"(?:{_HOST_CHARACTER}|%[46][1-9A-F]|%[57][0-9A]|%3[0-9]"]
        + [f"%{ord(sign):02X}" for sign in " " + _HOST_SIGNS]
    )
    + ")*",
    re.ASCII | re.IGNORECASE,
)
_PORT: Final = re.compile(r"(?::[0-9]*)?", re.ASCII)
_PATH_SAFE: Final = "$&+,/:;=@"
_PATH_VALID: Final = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:@\[\]/]|%[0-9A-Fa-f]{2})*", re.ASCII)


class _Invalid(ValueError):
    """The text is no URL."""


@dataclass(frozen=True, slots=True, eq=False)
class Url(Opaque):
    """The parts of a URL; ``path`` is escaped."""

    scheme: str
    opaque: str
    user: str
    host: str
    path: str
    query: str
    fragment: str
    cel_type: ClassVar[Type] = URL

    def identity(self) -> Any:
        return self.scheme, self.opaque, self.user, self.host, self.path, self.query, self.fragment

    @property
    def hostname(self) -> str:
        host = self.host[: len(self.host) - len(self._port())]
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @property
    def port(self) -> str:
        return self._port()[1:]

    def _port(self) -> str:
        colon = self.host.rfind(":")
        return self.host[colon:] if colon >= 0 and _PORT.fullmatch(self.host[colon:]) else ""


def _split(text: str, *, request: bool) -> Url:
    """The parts of a URL; ``request``: as a request line has it, absolute and without fragment. Raises _Invalid."""
    if _CONTROL.search(text):
        raise _Invalid("invalid control character in URL")
    if not text and request:
        raise _Invalid("empty url")
    scheme, rest = _scheme(text)
    rest, _, query = (rest[:-1], "", "?") if rest.endswith("?") and rest.count("?") == 1 else rest.partition("?")
    user = host = ""
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, rest, "", "", "", query, "")
        if request and text != "*":
            raise _Invalid("invalid URI for request")
    if (scheme or (not request and not rest.startswith("///"))) and rest.startswith("//"):
        authority, slash, tail = rest[2:].partition("/")
        rest = slash + tail
        user, host = _authority(scheme, authority)
    return Url(scheme, "", user, host, _escaped_path(rest), query, "")


def _scheme(text: str) -> tuple[str, str]:
    match = _SCHEME.match(text)
    if match is not None:
        return match[1].lower(), text[match.end() :]
    if text.startswith(":"):
        raise _Invalid("missing protocol scheme")
    return "", text


def _authority(scheme: str, text: str) -> tuple[str, str]:
    user, at, host = text.rpartition("@")
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        raise _Invalid("net/url: invalid userinfo")
    if "[" in host:
        return unquote(user), _ip_literal(host)
    # Only schemes other than http and https may have lists of hosts, whose ports are not looked at.
    colon = host.find(":") if scheme in ("http", "https") else host.rfind(":")
    port = host[colon:] if colon >= 0 else ""
    if not _PORT.fullmatch(port):
        raise _Invalid(f"invalid port {port!r} after host")
    if not _HOST.fullmatch(host):
        raise _Invalid("invalid character in host name")
    return unquote(user), unquote(host)


def _ip_literal(host: str) -> str:
    """``[IPv6 address]:port``, where ``%25`` starts the zone of an address."""
    address, bracket, port = host[1:].rpartition("]")
    if not host.startswith("[") or "[" in address or not bracket or "[" in port:
        raise _Invalid("invalid IP-literal")
    if not _PORT.fullmatch(port):
        raise _Invalid(f"invalid port {port!r} after host")
    plain, percent, zone = address.partition("%25")
    if not _HOST.fullmatch(plain) or not _ZONE.fullmatch(zone):
        raise _Invalid("invalid character in host name")
    name = unquote(plain) + unquote(percent + zone)
    try:
        IPv6Address(name)
    except ValueError as error:
        raise _Invalid(f"invalid host: {error}") from None
    return f"[{name}]{port}"


def _escaped_path(path: str) -> str:
    if _BAD_ESCAPE.search(path):
        raise _Invalid("invalid URL escape")
    return path if _PATH_VALID.fullmatch(path) or path == "*" else quote(unquote(path), safe=_PATH_SAFE)


@remember_short(512)
def parse(text: str) -> Url:
    """The URL of a text. Raises EvaluationError."""
    try:
        _split(text, request=True)
        body, _, fragment = text.partition("#")
        found = _split(body, request=False)
        if _BAD_ESCAPE.search(fragment):
            raise _Invalid("invalid URL escape")
    except (_Invalid, UnicodeError) as error:
        message = f"URL parse error during conversion from string: parse {quoted(text[:200])}: {error}"
        raise EvaluationError("conversion", message) from None
    return Url(found.scheme, found.opaque, found.user, found.host, found.path, found.query, unquote(fragment))


def request_fault(text: str) -> str | None:
    """What is wrong with a text as a URL of a request line, or None."""
    try:
        _split(text, request=True)
    except (_Invalid, UnicodeError) as error:
        return f"parse {quoted(text)}: {error}"
    return None


def _query(url: Url) -> dict[str, list[str]]:
    """Keys and values; parts with a semicolon or a bad escape are left out."""
    found: dict[str, list[str]] = {}
    for part in url.query.removeprefix("?").split("&"):
        if part and ";" not in part and not _BAD_ESCAPE.search(part):
            key, _, value = part.partition("=")
            found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


LIBRARY: Final = (
    Function("url", (glob((STRING,), URL, parse, traversal(sized=True)),)),
    Function("isURL", (glob((STRING,), BOOL, lambda text: request_fault(text) is None),)),
    Function("getScheme", (method((URL,), STRING, lambda url: url.scheme),)),
    Function("getHost", (method((URL,), STRING, lambda url: url.host),)),
    Function("getHostname", (method((URL,), STRING, lambda url: url.hostname),)),
    Function("getPort", (method((URL,), STRING, lambda url: url.port),)),
    Function("getEscapedPath", (method((URL,), STRING, lambda url: url.path),)),
    Function("getQuery", (method((URL,), map_of(STRING, list_of(STRING)), _query),)),
)
