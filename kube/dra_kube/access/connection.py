"""Where the API server is, and the credentials for it.

Kubeconfigs without plugins are read here (``kubeconfig``). The ``kubernetes`` package reads in-cluster credentials and
runs the plugins and refresh hooks that cloud providers need; it is imported only then. We take only the result: its
client drops unknown fields and costs several times more per object.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import ssl
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from dra_kube.errors import ConnectionSettingsError

from .credentials import Certificate, ClientTls, Credentials, Headers, Pem, client_tls, impersonation_of, scratch_parent
from .kubeconfig import (
    DEFAULT_FILE,
    Overrides,
    PlainSettings,
    Unusable,
    check_cluster,
    chosen_context,
    entry_of,
    existing_files,
    overridden,
    read_kubeconfig,
)

_LOADING = threading.Lock()
"""The package remembers the names of its files by content: another thread must not get that of a file that is gone."""
MOST_PLUGIN_LETTERS: Final = 300
"""Letters of a failed credential plugin's message."""


@dataclass(frozen=True)
class Connection:
    """Address, TLS and credentials. ``authorization`` is asked before every request, since tokens expire.

    ``refused`` is told which answer the server did not accept. ``impersonation`` are headers of each request.
    """

    host: str
    tls: ssl.SSLContext | None
    authorization: Callable[[], str | None]
    proxy: str | None = field(default=None, repr=False)  # may hold a password
    refused: Callable[[str | None], None] = lambda _: None
    impersonation: Headers = ()


def contexts(kubeconfig: str | None = None) -> list[str]:
    """The names of the contexts in a kubeconfig, by default in ``KUBECONFIG``. Raises ConnectionSettingsError."""
    return [context["name"] for context in _content(kubeconfig)["contexts"]]


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """The namespace of a context, by default of the current one; ``default`` if it names none, or is not there."""
    try:
        chosen = chosen_context(_content(kubeconfig), context)
    except (ConnectionSettingsError, Unusable):
        return "default"  # inside a cluster, for instance; ``connection`` reports what is wrong
    return str(chosen["context"].get("namespace") or "default")


def _content(kubeconfig: str | None) -> dict[str, Any]:
    """Return a kubeconfig, by default that of ``KUBECONFIG``. Raises ConnectionSettingsError."""
    try:
        return read_kubeconfig(kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_FILE)
    except Unusable as error:
        raise ConnectionSettingsError(f"cannot read the kubeconfig: {error}") from error


def connection(
    kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None, overrides: Overrides | None = None
) -> Connection:
    """The connection that a kubeconfig describes; without one ``KUBECONFIG``, the pod's service account, ``~/.kube``.

    ``overrides`` are options of a command line. Raises ConnectionSettingsError with the file and a remedy.
    """
    source = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config and the in-cluster service account"
    try:
        settings, load = _loader(kubeconfig, context, overrides or Overrides())
        loaded = load()
    except Unusable as error:
        raise ConnectionSettingsError(
            f"no usable API server settings in {source}: {error}; "
            "pass --kubeconfig FILE, set KUBECONFIG, or run inside a cluster"
        ) from error
    except ConnectionSettingsError:
        raise
    except Exception as error:  # the loader passes on YAML, key and base64 errors of a broken file
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConnectionSettingsError(
            f"cannot read the kubeconfig {source}: {reason}; fix it, or pass another one with --kubeconfig"
        ) from error
    return _from_settings(settings, loaded, load)


@dataclass(frozen=True)
class _Loaded:
    """What the package does not put into its settings. ``until``: when the client certificate of a plugin ends.

    The package writes what a kubeconfig embeds to files, and removes them when the process ends, unless it is killed.
    Here they are read, and gone.
    """

    where: str
    ca: Pem | None
    certificate: Certificate | None
    impersonation: Headers = ()
    until: datetime | None = None


def _loader(
    kubeconfig: str | os.PathLike[str] | None, context: str | None, overrides: Overrides
) -> tuple[Any, Callable[[], _Loaded]]:
    """Settings, and what fills them in, now and whenever credentials may have changed. Raises Unusable."""
    explicit = kubeconfig or os.environ.get("KUBECONFIG")
    if not explicit and not overrides and "KUBERNETES_SERVICE_HOST" in os.environ:
        from kubernetes.client import Configuration

        return (inside := Configuration()), lambda: _load_inside(inside)
    file = str(explicit) if explicit else DEFAULT_FILE
    try:
        config, name = _read(file, context, overrides)
    except Unusable:
        if existing_files(file) or not overrides.server:
            raise
        file, (config, name) = (
            "the command line",
            overridden({"contexts": [], "clusters": [], "users": []}, None, overrides),
        )
    about = chosen_context(config, name)["context"]
    if PlainSettings.suits(entry_of(config, "users", about.get("user"))):
        plain = PlainSettings()
        return plain, lambda: _load_plain(plain, file, context, overrides)
    from kubernetes.client import Configuration

    settings = Configuration()
    settings.proxy = None  # that of the environment, which counts later
    return settings, lambda: _load_with_plugin(settings, file, context, overrides)


def _read(file: str, context: str | None, overrides: Overrides) -> tuple[dict[str, Any], str | None]:
    if file == "the command line":
        return overridden({"contexts": [], "clusters": [], "users": []}, None, overrides)
    return overridden(read_kubeconfig(file), context, overrides)


def _load_inside(settings: Any) -> _Loaded:
    from kubernetes import config as kubernetes_config

    try:
        kubernetes_config.load_incluster_config(settings)  # type: ignore[no-untyped-call]  # the package is untyped
    except kubernetes_config.ConfigException as error:
        raise Unusable(str(error)) from error
    settings.proxy = None
    return _Loaded("the in-cluster service account", settings.ssl_ca_cert, None)


def _load_plain(settings: PlainSettings, file: str, context: str | None, overrides: Overrides) -> _Loaded:
    config, name = _read(file, context, overrides)
    about = chosen_context(config, name)["context"]
    cluster, user = (entry_of(config, f"{kind}s", about.get(kind)) for kind in ("cluster", "user"))
    if not PlainSettings.suits(user):
        raise Unusable(f"{file} names a plugin now: start again")
    settings.load(cluster, user)
    return _Loaded(file, settings.ca, settings.certificate, impersonation_of(user))


def _load_with_plugin(settings: Any, file: str, context: str | None, overrides: Overrides) -> _Loaded:
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigLoader

    config, name = _read(file, context, overrides)
    about = chosen_context(config, name)["context"]
    user = entry_of(config, "users", about.get("user"))
    check_cluster(entry_of(config, "clusters", about.get("cluster")))
    said: list[str] = []
    try:
        with _scratch() as scratch, _told_by_the_package(said):
            loader = KubeConfigLoader(config, name, temp_file_path=scratch)  # type: ignore[no-untyped-call]
            loader.load_and_set(settings)  # type: ignore[no-untyped-call]
            paths = settings.ssl_ca_cert, settings.cert_file, settings.key_file
            ca, certificate, key = (_read_if_below(scratch, path) for path in paths)
    except ConfigException as error:
        raise Unusable(str(error)) from error
    except OSError as error:
        if scratch_parent() is None:
            raise
        raise Unusable(
            f"there is no writable folder for the certificates in {file}: mount one at /tmp ({error})"
        ) from error
    if "exec" in user and not any(vars(loader).get(given) for given in ("token", "cert_file")):
        raise Unusable(
            f"the exec plugin {user['exec']['command']} gave no credentials: {'; '.join(said) or 'run it by hand'}"
        )
    # Of a token the package minds the end itself.
    until = getattr(loader, "expiry", None) if not settings.api_key else None
    return _Loaded(file, ca, (certificate, key) if certificate else None, impersonation_of(user), until)


@contextmanager
def _told_by_the_package(texts: list[str]) -> Iterator[None]:
    """The package logs that a plugin failed, and continues without credentials: the text belongs into our error."""

    def is_of_others(record: logging.LogRecord) -> bool:
        is_told = record.module in ("kube_config", "exec_provider")
        if is_told:
            texts.append(" ".join(record.getMessage().split())[:MOST_PLUGIN_LETTERS])
        return not is_told

    root = logging.getLogger()
    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)


@contextmanager
def _scratch() -> Iterator[str]:
    """A folder for what the package writes, which is gone afterwards; the package makes it if it needs it."""
    with _LOADING:
        parent = scratch_parent() or tempfile.gettempdir()
        folder = os.path.abspath(os.path.join(parent, f"dra-kube-{secrets.token_hex(8)}"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _read_if_below(folder: str, path: str | None) -> Pem | None:
    return Path(path).read_bytes() if path and os.path.dirname(path) == folder else path


def _from_settings(settings: Any, loaded: _Loaded, load: Callable[[], _Loaded]) -> Connection:
    tls: ClientTls | None = None
    where = loaded.where
    if urlsplit(settings.host).scheme == "https":  # in lower case; without TLS settings nothing would be verified
        try:
            tls = client_tls(
                loaded.ca, loaded.certificate, server_name=settings.tls_server_name, verify=settings.verify_ssl
            )
        except OSError as error:
            if scratch_parent() is not None:
                raise ConnectionSettingsError(
                    f"there is no writable folder for the certificates in {where}: mount one at /tmp ({error})"
                ) from error
            raise ConnectionSettingsError(f"the certificates in {where} cannot be used: {error}") from error

    def look_up() -> str | None:
        token: str | None = settings.get_api_key_with_prefix("BearerToken", "authorization")
        if token:
            scheme, _, credential = token.strip().rpartition(" ")
            return f"{scheme.strip().capitalize() or 'Bearer'} {credential}"
        basic: str | None = settings.get_basic_auth_token() if settings.username else None
        return basic

    def load_again() -> datetime | None:
        again = load()
        if tls is not None:
            tls.read_from(again.ca, again.certificate)
        return again.until

    proxy = settings.proxy or _proxy_of_environment(settings.host)
    if proxy:
        named = f"cluster's proxy-url in {where}" if settings.proxy else "environment's HTTPS_PROXY or HTTP_PROXY"
        _check_proxy(proxy, named)
    credentials = Credentials(look_up, load_again, loaded.until)
    host = settings.host.rstrip("/")
    return Connection(host, tls, credentials.authorization, proxy, credentials.refused, loaded.impersonation)


def _proxy_of_environment(host: str) -> str | None:
    """What ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` say, as Go's clients understand them.

    The server on this machine needs no proxy. Inside a cluster ``NO_PROXY`` often names the network of its services.
    """
    url, found = urlsplit(host), getproxies()
    if url.scheme not in found or _is_loopback(url.hostname or ""):
        return None
    from kubernetes.client.rest import should_bypass_proxies

    return None if should_bypass_proxies(host, found.get("no", "")) else found[url.scheme]


def proxy_and_credentials(proxy: str | None) -> tuple[str | None, str | None]:
    """The proxy's address as it may be shown, and the header ``Proxy-Authorization`` that it asks for."""
    if proxy is None:
        return None, None
    url = urlsplit(proxy)
    address = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
    if url.username is None:
        return address, None
    credentials = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return address, f"Basic {b64encode(credentials.encode()).decode()}"


def _check_proxy(proxy: str, where: str) -> None:
    """Here, and without the value: what a library says of an address that it cannot read may show the password.

    Raises ConnectionSettingsError.
    """
    try:
        url = urlsplit(proxy)
        is_usable = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ConnectionSettingsError(
            f"the {where} is not an address such as http://HOST:PORT; "
            "in a user name or password write / as %2F, # as %23, ? as %3F and @ as %40"
        )


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
