"""Where the API server is, and the credentials for it.

The ``kubernetes`` package reads kubeconfig files and in-cluster credentials, including the
plugins and refresh hooks that cloud providers need. We take only the result: its client drops unknown fields and costs
several times more per object.
"""

from __future__ import annotations

import os
import secrets
import shutil
import ssl
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

import yaml
from dra_api import yaml_text
from kubernetes import config as kubernetes_config
from kubernetes.client import Configuration
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from dra_kube.errors import ConnectionSettingsError

from .credentials import Credentials, Headers, impersonation_of
from .tls import Certificate, ClientTls, Pem, client_tls, scratch_parent

_LARGEST_KUBECONFIG_BYTES = 4 * 2**20
"""Bytes of a kubeconfig, which holds certificates, and an entry for each cluster."""

_LOADING = threading.Lock()
"""The package remembers the names of its files by content: another thread must not get that of a file that is gone."""


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
    return [context["name"] for context in _contexts(kubeconfig)[0]]


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """The namespace of a context, by default of the current one; ``default`` if it names none, or is not there."""
    try:
        known, current = _contexts(kubeconfig)
    except ConnectionSettingsError:
        return "default"  # inside a cluster, for instance; ``connection`` reports what is wrong
    chosen = current if context is None else next((one for one in known if one["name"] == context), {})
    return str(chosen.get("context", {}).get("namespace") or "default")


def _contexts(kubeconfig: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All contexts, and the current one. Raises ConnectionSettingsError."""
    file = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        _checked_files(file or "")
        found, current = kubernetes_config.list_kube_config_contexts(  # type: ignore[no-untyped-call]  # an untyped package
            file
        )
    except ConnectionSettingsError:
        raise
    except Exception as error:  # the loader passes on YAML errors of a broken file
        raise ConnectionSettingsError(f"cannot read the kubeconfig: {error}") from error
    return found, current


def connection(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> Connection:
    """The connection that a kubeconfig describes; without one ``KUBECONFIG``, the pod's service account, ``~/.kube``.

    Raises ConnectionSettingsError, which names the file and a remedy.
    """
    settings = Configuration()
    settings.proxy = None  # that of the environment, which counts later
    source = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config and the in-cluster service account"
    try:
        loaded = _load(settings, kubeconfig, context)
    except kubernetes_config.ConfigException as error:
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
    return _from_settings(settings, loaded, lambda: _load(settings, kubeconfig, context))


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


def _load(settings: Configuration, kubeconfig: str | os.PathLike[str] | None, context: str | None) -> _Loaded:
    explicit = kubeconfig or os.environ.get("KUBECONFIG")
    if not explicit and "KUBERNETES_SERVICE_HOST" in os.environ:
        kubernetes_config.load_incluster_config(settings)  # type: ignore[no-untyped-call]  # the package is untyped
        return _Loaded("the in-cluster service account", settings.ssl_ca_cert, None)
    file = str(explicit) if explicit else kubernetes_config.KUBE_CONFIG_DEFAULT_LOCATION or "~/.kube/config"
    if not _checked_files(file):
        what = "is a folder, not a file" if Path(file).expanduser().is_dir() else "does not exist"
        raise kubernetes_config.ConfigException(f"{file} {what}")
    try:
        with _scratch() as scratch:
            config = KubeConfigMerger(file).config  # type: ignore[no-untyped-call]  # the package is untyped
            if config is None:
                raise kubernetes_config.ConfigException(f"{file} has no configuration")
            loader = KubeConfigLoader(config, context, temp_file_path=scratch)  # type: ignore[no-untyped-call]
            loader.load_and_set(settings)  # type: ignore[no-untyped-call]
            paths = settings.ssl_ca_cert, settings.cert_file, settings.key_file
            ca, certificate, key = (_read_if_below(scratch, path) for path in paths)
    except OSError as error:
        if scratch_parent() is None:
            raise
        raise kubernetes_config.ConfigException(
            f"there is no writable folder for the certificates in {file}: mount one at /tmp ({error})"
        ) from error
    user = _user(config, context)
    # The package logs that a plugin failed, and continues without credentials.
    if "exec" in user and not any(vars(loader).get(given) for given in ("token", "cert_file")):
        raise kubernetes_config.ConfigException(
            f"the exec plugin {user['exec']['command']} gave no credentials; the log says why, or run it by hand"
        )
    # Of a token the package minds the end itself.
    until = getattr(loader, "expiry", None) if not settings.api_key else None
    return _Loaded(file, ca, (certificate, key) if certificate else None, impersonation_of(user), until)


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


def _user(config: Any, context: str | None) -> Mapping[str, Any]:
    """What the kubeconfig says of the user of the context; empty if it names none."""
    chosen = config["contexts"].get_with_name(context or config["current-context"])["context"].safe_get("user")
    if not chosen or not config.safe_get("users"):
        return {}
    found = config["users"].get_with_name(chosen, safe=True)
    user: Mapping[str, Any] = (found.value.get("user") or {}) if found else {}
    return user


def _checked_files(paths: str) -> list[Path]:
    """Those that exist. Raises ConnectionSettingsError."""
    found = [path for part in paths.split(os.pathsep) if (path := Path(part).expanduser()).is_file()]
    for path in found:
        _check_within_limits(path)
    return found


def _check_within_limits(path: Path) -> None:
    """The kubernetes package reads files of any size, YAML that stands for gigabytes, and shows values in its errors.

    Raises ConnectionSettingsError.
    """
    with path.open("rb") as file:
        content = file.read(_LARGEST_KUBECONFIG_BYTES + 1)
    if len(content) > _LARGEST_KUBECONFIG_BYTES:
        raise ConnectionSettingsError(
            f"cannot read the kubeconfig {path}: it is larger than {_LARGEST_KUBECONFIG_BYTES >> 20} MiB"
        )
    try:
        yaml_text.load(content)
    except yaml.YAMLError as error:  # its text may show the line, and a token in it
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"{path}, line {mark.line + 1}" if mark else f"{path}"
        problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise ConnectionSettingsError(
            f"cannot read the kubeconfig {where}: not YAML: {problem}; fix it, or pass another one with --kubeconfig"
        ) from None


def _from_settings(settings: Configuration, loaded: _Loaded, load: Callable[[], _Loaded]) -> Connection:
    tls: ClientTls | None = None
    where = loaded.where
    if settings.host.startswith("https"):
        try:
            tls = client_tls(
                loaded.ca, loaded.certificate, server_name=settings.tls_server_name, verify=settings.verify_ssl
            )
        except OSError as error:
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
    if _is_loopback(url.hostname or "") or should_bypass_proxies(host, found.get("no", "")):
        return None
    return found.get(url.scheme)


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
