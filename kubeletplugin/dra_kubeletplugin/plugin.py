"""One running plugin: makes its folders, starts and stops its servers and its publisher.

Spec: plugin-helper.md section 2.3. The DRA service listens before the registration service, so that the kubelet never
registers a dead endpoint. They stop in reverse order, the publisher last. The slices stay: the kubelet removes them,
and a plugin that restarts finds them again. A mistyped path leaves nothing behind, and a folder that is mounted
read-only is an error of the start, not of each claim.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from dra_cdi import CdiError
from dra_kube import Api
from dra_proto.registration.v1.api_pb2_grpc import add_RegistrationServicer_to_server

from dra_kubeletplugin.claims.calls import LEGACY, V1, V1BETA1, DRAService, NodeCalls, Turns
from dra_kubeletplugin.claims.device_status import DeviceStatus, report_devices
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.driver import ClaimRef, Driver, PreparedDevice, answer_of
from dra_kubeletplugin.errors import ClaimError, Fatal, Recoverable, SettingsError, StartError
from dra_kubeletplugin.files.checkpoint import ClaimRecords, boot_id
from dra_kubeletplugin.files.claim_files import CdiFolder, ClaimFiles, MetadataFiles
from dra_kubeletplugin.files.folders import HostParts, NewFolders, check_writable
from dra_kubeletplugin.health import HealthReports
from dra_kubeletplugin.kubelet import (
    Interceptor,
    LoggingInterceptor,
    RegistrationService,
    RegistrationStatus,
    SocketServer,
    beside,
    is_newest,
)
from dra_kubeletplugin.settings import PluginSettings
from dra_kubeletplugin.slices import Owner, PoolCounters, Resources, SlicePublisher, Statistics, marked_for

log = logging.getLogger(__name__)

_LATE_START_SECONDS = 10.0
_FILES_LOOK_SECONDS = 5.0
_LONGEST_FILES_LOOK_SECONDS = 60.0
"""Seconds from one look at the files of prepared claims to the next, while they cannot be written again."""


class KubeletPlugin:
    """A driver at work on its node; an async context manager.

    ``api`` is an entered ``dra_kube.Api``. ``interceptors`` run inside the built-in ones, in their order.
    Entering raises StartError when a socket cannot be served; what was started by then is stopped again.
    """

    def __init__(
        self,
        driver: Driver,
        settings: PluginSettings,
        api: Api,
        *,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        self.settings = settings
        self._driver = driver
        self._api = api
        self._turns = Turns(serialize=settings.serialize, folder=settings.lock_folder)
        self._records = ClaimRecords(settings.records_dir)
        self._cdi = CdiFolder(Path(settings.cdi_dir), settings.driver_name)
        metadata = MetadataFiles(settings.metadata_dir, settings.driver_name, settings.metadata_versions)
        self._parts = HostParts(Path(settings.registry_dir), settings.driver_name)
        self._prepared = PreparedClaims(
            driver,
            settings.driver_name,
            self._records,
            ClaimFiles(self._cdi, metadata, self._parts),
            self._offers,
            self._turns.deciding,
            self._counters,
            settings.node_name,
        )
        self._calls = NodeCalls(self._prepared, api, self._turns)
        self._health = HealthReports(driver, settings.node_name, served=settings.serve_health)
        served = ((V1, settings.serve_v1), (V1BETA1, settings.serve_v1beta1), (LEGACY, settings.serve_legacy))
        self._versions = [version for version, on in served if on]
        services = [*(version.name for version in self._versions), *self._health.services]
        endpoint = str(settings.plugin_path)
        self._registration = RegistrationService(settings.driver_name, endpoint, services, self._restore_slices)
        self._interceptors = (LoggingInterceptor(log, settings.log_level), *interceptors)
        self._publisher: SlicePublisher | None = None
        self._stack = AsyncExitStack()
        self._fatal: asyncio.Future[Fatal] = asyncio.Future()
        self._starting: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        settings = self.settings
        dra = self._server(settings.plugin_path, settings.plugin_sockets, self._add_dra_services)
        registration = self._server(
            settings.registration_path, settings.registration_sockets, self._add_registration_service
        )
        self._check(dra, registration)
        async with AsyncExitStack() as stack:
            stack.push(NewFolders(*self._folders()))
            stack.callback(self._leave_records)
            stack.push_async_callback(self._turns.stop)
            stack.push_async_callback(self._calls.stop)
            stack.push_async_callback(registration.stop)
            stack.push_async_callback(dra.stop)  # what is pushed last is stopped first
            is_new = self._make_folders() if settings.run_dra_service else True
            await self._tell_started()
            if settings.run_dra_service:
                await dra.start()
            if settings.run_registration:
                await registration.start()
            if settings.run_dra_service:
                await self._load_records()
                # when nothing can fail any more: it takes lock files, which stay
                for work in (self._keep_files(sweep=not is_new), self._health.follow()):
                    stack.push_async_callback(_cancel, asyncio.create_task(work))
            self._stack = stack.pop_all()
        log.info("driver %s serves on %s", settings.driver_name, settings.plugin_path)
        self._warn_of_others()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.__aexit__(kind, error, trace)
        finally:
            if self._publisher:
                await self._publisher.__aexit__(kind, error, trace)

    async def publish(self, resources: Resources) -> None:
        """Offer these pools on this node, in place of those before; ``{}`` removes all slices.

        Returns at once; errors go to ``handle_error``. While a newer instance serves on the node (``is_newest``), this
        one writes nothing: two versions of a driver may want different slices, and each would undo what the other one
        writes. Raises SettingsError without a node name, or with ``publishes=False``.
        """
        if not self.settings.publishes:
            raise SettingsError("cannot publish with publishes=False: a controller of the driver does")
        if self._publisher is None:
            if not self.settings.node_name:
                raise SettingsError("cannot publish without a node name: set node_name")
            self._publisher = SlicePublisher(
                self._api,
                self.settings.driver_name,
                owner=Owner.node(self.settings.node_name, self.settings.node_uid),
                reconcile_pool=self.settings.reconcile_pool,
                on_error=self._driver.handle_error,
                rate=self.settings.api_rate,
                burst=self.settings.api_burst,
                may_publish=lambda: self.is_newest,
            )
            await self._publisher.__aenter__()
        self._publisher.publish(marked_for(self.settings.scheduler, resources))

    async def published(self) -> None:
        """Wait until the pools published last are in the API server.

        Never ends while writing them fails, or a newer instance of the driver serves.
        """
        if self._publisher:
            await self._publisher.settled()

    async def registered(self) -> None:
        """Wait until the kubelet has registered the plugin. Raises StartError within ``started``."""
        self._check_not_starting("registered")
        await self._registration.registered()

    async def update_metadata(self, claim: ClaimRef, request: str, devices: Sequence[PreparedDevice]) -> None:
        """Replace what the metadata file of a prepared request says of its devices; a running container sees it.

        For what is known only later, such as addresses; needs ``device_metadata``. ``devices`` are some of those that
        ``prepare`` returned, with other ``attributes`` and ``network``. Raises ClaimError.
        """
        work = partial(self._prepared.update_metadata, claim, request, devices)
        await self._turns.run(f"update of the metadata of claim {claim}", [claim.uid], work)

    async def prepare_again(self, devices: Collection[str], *, pool: str = "") -> None:
        """Call the driver's ``prepare`` for the prepared claims that hold one of these devices, for they have changed.

        Another answer replaces what containers get that start from now on. If ``prepare`` raises, the CDI files of the
        claim are withdrawn, so that no container starts with it, until a later call finds it well again: each call
        also tries those claims. The claim that ``prepare`` gets is as it was allocated, with this driver's results and
        configuration, without its spec. ``pool`` is that of the devices, the node's if left out. Raises ClaimError.
        """
        what = "preparing changed devices again"
        self._turns.refuse_within_work(what)
        if uids := self._prepared.holders(devices, pool or self.settings.node_name):
            await self._prepared.prepare_again(uids, partial(self._turns.run, what))

    async def report_devices(self, claim: ClaimRef, statuses: Iterable[DeviceStatus]) -> None:
        """Say in the claim's status how its devices of this driver do, in place of what this node said before.

        What a controller of the driver, or another node, has reported stays. Raises ClaimError for a claim that is
        gone, replaced or not allocated to the device, or KubeError.
        """
        part = self.settings.node_name or "node"
        await report_devices(self._api, self.settings.driver_name, claim, statuses, part=part)

    async def wait(self) -> None:
        """Run until the task is cancelled; raises the ``Fatal`` error after which the process should end.

        Raises StartError within ``started``: the driver waits for itself there.
        """
        self._check_not_starting("wait")
        raise await asyncio.shield(self._fatal)

    @property
    def registration_status(self) -> RegistrationStatus | None:
        """The kubelet's last word about our registration; None before the first."""
        return self._registration.status

    @property
    def prepared_claims(self) -> list[ClaimRef]:
        """The claims that are prepared on this node, by any instance of the driver. Raises ClaimError."""
        return self._prepared.claims()

    def parts_elsewhere(self, *, shared: bool = False) -> Mapping[str, str]:
        """Return the parts of the host that other drivers of this library have given to claims, with their names.

        A claim whose device owns one is refused: taint such a device. With ``shared``, for a device of which claims
        have shares, parts of which others have shares as well do not count. It reads files. Raises ClaimError.
        """
        return self._parts.elsewhere(boot_id(), shared=shared)

    @property
    def is_newest(self) -> bool:
        """Whether no instance of the driver that started later serves on this node, as in a rolling update.

        Another version may know other devices: only the newest one publishes, and only that should prepare claims again
        whose devices changed. An instance that stops has ended with its socket.
        """
        return not self.settings.run_dra_service or is_newest(self.settings.plugin_path, self.settings.plugin_sockets)

    @property
    def has_published(self) -> bool:
        """Whether pools of the driver were once brought to the API server, or reported as invalid or refused.

        A plugin without a node name, or with ``publishes=False``, never publishes; for that one it is always true.
        """
        return not (self.settings.node_name and self.settings.publishes) or (
            self._publisher is not None and self._publisher.has_settled
        )

    @property
    def problems(self) -> Mapping[str, Recoverable]:
        """By pool, why it is not in the API server as it was published; empty if all are."""
        return self._publisher.problems if self._publisher else {}

    @property
    def statistics(self) -> Statistics:
        """Slices written so far."""
        return self._publisher.statistics if self._publisher else Statistics()

    def _warn_of_others(self) -> None:
        """Say so if another instance shares no lock files with this one, as in the update that brings the uids."""
        path = self.settings.plugin_path
        without = beside(path, self.settings.plugin_sockets) if self.settings.run_dra_service else []
        if self.settings.rolling_update_uid:
            without = [other for other in without if other.name == "dra.sock"]
        if without and self.settings.serialize:
            log.warning(
                "another instance of driver %s serves on %s, and one of the two has no rolling_update_uid: they do not "
                "take turns, so that both may work on one claim. Give each the uid of its pod, or let one end first",
                self.settings.driver_name,
                ", ".join(map(str, without)),
            )

    async def _tell_started(self) -> None:
        """Call the driver's ``started``, and say so if the start waits for it."""
        text = "the driver's started has not returned for %.0f s; the plugin serves no call before"
        late = asyncio.get_running_loop().call_later(_LATE_START_SECONDS, log.warning, text, _LATE_START_SECONDS)
        self._starting = asyncio.current_task()
        try:
            await answer_of(self._driver.started(self))
        finally:
            self._starting = None
            late.cancel()

    def _check_not_starting(self, call: str) -> None:
        if self._starting is not None and asyncio.current_task() is self._starting:
            raise StartError(
                f"plugin.{call}() within started would wait for ever: the plugin serves when started has "
                "returned; await it in a task of the driver's own"
            )

    def _check(self, dra: SocketServer, registration: SocketServer) -> None:
        """Find what would fail before anything is created on disk. Raises StartError."""
        if self.settings.run_dra_service:
            dra.check()
        if self.settings.run_registration:
            registration.check()
            folder = registration.path.parent
            if not folder.is_dir():
                raise StartError(
                    f"the folder {folder} for the socket {registration.path.name} does not exist: create or mount it"
                )

    def _folders(self) -> list[Path]:
        """Those that the plugin writes to, and makes if they are missing."""
        lock_folder = self.settings.lock_folder
        folders = [self.settings.folder, self._records.folder, self._cdi.folder]
        return folders if lock_folder is None else [*folders, lock_folder]

    def _make_folders(self) -> bool:
        """Make the folders; whether there was no record of prepared claims. Raises StartError."""
        try:
            self.settings.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._cdi.create()
            is_new = self._records.create()
            for folder in self._folders():
                folder.mkdir(mode=0o750, parents=True, exist_ok=True)
                check_writable(folder)
        except (OSError, CdiError) as error:
            raise StartError(
                f"cannot make the folders of the plugin, or files in them: {error}; see data_dir, cdi_dir and lock_dir"
            ) from error
        return is_new

    async def _load_records(self) -> None:
        """Read the records of 1,000 claims in a thread, while the plugin registers; later only those that change.

        Whoever asks first would read all of them on the event loop, as a driver does with ``prepared_claims``.
        """
        with suppress(ClaimError):  # each call says so
            await self._prepared.load()

    async def _keep_files(self, *, sweep: bool) -> None:
        """Bring the files in line with the prepared claims, and write again what somebody else removes of them."""
        try:
            await self._turns.run("tidying prepared claims", (), partial(self._prepared.tidy, sweep=sweep))
        except Exception as error:
            log.error("cannot bring CDI files in line with the prepared claims: %s", error, exc_info=error)
        pause = _FILES_LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                is_well = await self._prepared.restore(partial(self._turns.run, "restoring files of a prepared claim"))
            except (ClaimError, OSError) as error:
                log.error("cannot restore the files of prepared claims: %s", error)
                is_well = False
            pause = _FILES_LOOK_SECONDS if is_well else min(2 * pause, _LONGEST_FILES_LOOK_SECONDS)

    def _leave_records(self) -> None:
        try:
            self._records.close()
        except ClaimError as error:
            log.error("the next process will not know the prepared claims: %s", error)

    def _server(
        self, path: Path, instances: re.Pattern[str], register: Callable[[grpc.aio.Server], None]
    ) -> SocketServer:
        return SocketServer(self.settings.driver_name, path, instances, register, self._interceptors, self._died)

    def _add_dra_services(self, server: grpc.aio.Server) -> None:
        for version in self._versions:
            DRAService(version, self._calls).add_to(server)
        self._health.add_to(server)

    def _add_registration_service(self, server: grpc.aio.Server) -> None:
        add_RegistrationServicer_to_server(self._registration, server)

    def _offers(self, pool: str, device: str) -> bool:
        return self._publisher is None or self._publisher.offers(pool, device)

    def _counters(self, pool: str) -> PoolCounters | None:
        return self._publisher.counters(pool) if self._publisher else None

    def _restore_slices(self) -> None:
        if self._publisher:
            self._publisher.restore_soon()

    def _died(self, error: Fatal) -> None:
        if not self._fatal.done():  # first, because a handler that fails must not keep a dead plugin alive
            self._fatal.set_result(error)
        self._driver.handle_error(error, "the plugin cannot continue")


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
