"""What can be wrong with a driver, which check has to find it, and a part of what that says.

It is printed by checks:

    python tests/support/planted_faults.py

Benches with the bad driver on one API server.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bad_driver import BadLauncher
from dra_api.releases import NEWEST, Release
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.rbac import ADMIN
from dra_driver_test.kit import Bench, CommandLauncher, Launcher, Limits, Parameters, Place, open_bench

HEALTH_V1, HEALTH_ALPHA = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"


class Planted(NamedTuple):
    """One fault of the bad driver."""

    fault: str
    check: str
    text: str

    @property
    def is_a_process(self) -> bool:
        """Whether the driver has to run as a process of its own to be seen with this fault."""
        return "descriptor" in self.fault or self.fault in (
            "each claim leaks memory",
            "a failed call removes the files of its claim",
        )

    @property
    def faults(self) -> list[str]:
        return self.fault.split(" + ")

    @property
    def release(self) -> Release:
        """The release of Kubernetes at which it is a fault."""
        return Release.V1_36 if self.fault == "health is offered and not served" else Release.V1_37

    @property
    def waits(self) -> bool:
        """Whether the check finds out by waiting for something that does not come."""
        return self.text in ("not within", "DeadlineExceeded", "not registered", "deleted alone") or self.fault in (
            "it leaves a finalizer on claims",
            "the endpoint does not exist",
            "a slice of a pool is missing",
        )


FAULTS = [
    Planted(*row)
    for row in [
        # --- registration ---
        ("it is a CSI plugin", "registration.is-a-dra-plugin", "'CSIPlugin'"),
        ("its name is in upper case", "registration.has-a-valid-name", "lower case"),
        ("it offers version numbers", "registration.offers-a-known-service", "1.0.0"),
        ("it offers v1beta1 first", "registration.offers-the-newest-service-first", "put v1.DRAPlugin first"),
        ("it offers a misspelt service", "registration.offers-nothing-unknown", "v1.DRAHealth"),
        ("the endpoint is relative", "registration.names-an-endpoint-that-answers", "not an absolute path"),
        ("the endpoint does not exist", "registration.names-an-endpoint-that-answers", "accepts no connections"),
        ("it registers before it serves", "registration.serves-before-it-registers", "serve first"),
        ("GetInfo takes long", "registration.answers-in-time", "DeadlineExceeded"),
        ("it refuses its registration", "registration.accepts-success", "not wanted"),
        ("it gives up after a refusal", "registration.survives-a-refusal", "the driver ended"),
        ("GetInfo works once", "registration.can-be-repeated", "asked already"),
        ("GetInfo changes", "registration.can-be-repeated", "answers differently"),
        ("it leaves its registration socket", "registration.ends-with-the-driver", "still there"),
        ("it leaves its service socket", "registration.leaves-no-service-socket", "still there"),
        ("it trips over stale sockets", "registration.replaces-stale-sockets", "in use"),
        ("its name changes at each start", "registration.follows-each-start", "after a restart as 2-"),
        ("every user can write to its sockets", "registration.is-not-open-to-all", "mode 777"),
        # --- prepare ---
        ("prepare fails", "prepare.answers-a-claim", "always"),
        ("it answers another uid", "prepare.answers-a-claim", "unknown claim UID"),
        ("it skips claims of a call", "prepare.answers-each-claim-of-a-call", "skipped 1"),
        ("it prepares at most 3 claims a call", "prepare.answers-a-big-batch", "too many claims"),
        ("an empty prepare call fails", "prepare.accepts-an-empty-call", "no claims"),
        ("it prepares another device", "prepare.names-the-allocated-device", "gpu-3"),
        ("it names no request", "prepare.names-the-request", "name no request"),
        ("it names another request", "prepare.names-the-request", "prepared for ['other']"),
        (
            "results belong to requests by their order",
            "prepare.names-the-request",
            "'req-1', but prepared for ['req']",
        ),
        ("it names the subrequest", "prepare.names-the-base-of-a-subrequest", "req/small"),
        ("it prepares one device per request", "prepare.prepares-several-devices-of-a-request", "prepared are"),
        ("the second prepare fails", "prepare.can-be-repeated", "prepared already"),
        ("its ids change each time", "prepare.says-the-same-again", "the second"),
        ("it prepares devices of other drivers", "prepare.leaves-devices-of-other-drivers", "other-0"),
        ("it drops the share", "prepare.keeps-the-share", "[None]"),
        ("shares are exclusive", "prepare.gives-shares-to-several-claims", "in use"),
        ("it refuses admin access", "prepare.allows-admin-access", "in use"),
        ("one administrator keeps others out", "prepare.allows-admin-access", "looked at"),
        ("an administrator keeps users out", "prepare.allows-admin-access", "keeps users off"),
        ("a claim has one share of a device", "prepare.gives-two-shares-in-a-claim", "the shares"),
        ("kind: two pools + it ignores pools", "prepare.tells-pools-apart", "same ids"),
        # --- claims ---
        ("it invents devices", "claims.without-allocation-is-refused", "not allocated"),
        ("it needs no claim", "claims.that-is-missing-is-refused", "does not exist"),
        ("it ignores the uid", "claims.that-was-replaced-is-refused", "another object"),
        ("it takes any device", "claims.with-an-unknown-device-is-refused", "no-such-device"),
        ("one bad claim fails the call", "claims.that-are-bad-fail-alone", "one claim of two is bad"),
        ("an error is told of the next claim", "claims.that-are-bad-fail-alone", "one claim of two is bad"),
        ("it remembers failures", "claims.can-succeed-after-a-failure", "failed before"),
        ("failed claims stay", "claims.that-failed-can-be-unprepared", "never prepared"),
        ("it lends a device twice", "claims.do-not-take-a-device-in-use", "prepared for another"),
        ("it never gives a device back", "claims.get-a-device-after-it-is-given-back", "in use"),
        ("it trusts its memory", "claims.follow-a-new-allocation", "now holds"),
        ("it knows claims by name", "claims.that-are-created-again-are-new", "the new claim"),
        ("a failed claim leaves its files", "claims.that-failed-leave-nothing", "still describe"),
        ("a failed claim keeps its devices", "claims.that-failed-hold-no-device", "in use"),
        (
            "a new allocation leaves the old file",
            "claims.that-were-allocated-anew-leave-nothing",
            "still describe",
        ),
        (
            "a new allocation keeps the old device",
            "claims.that-were-allocated-anew-free-the-old-device",
            "in use",
        ),
        ("it keeps the first device when the second is in use", "claims.that-failed-hold-no-device", "in use"),
        ("each failed prepare leaks a descriptor", "claims.that-failed-leak-no-descriptors", "more open files"),
        ("it overdraws counters", "claims.do-not-overdraw-counters", "draws on the counters"),
        ("it leaves a label on claims", "claims.are-left-as-they-are", "metadata.labels"),
        ("it leaves a finalizer on claims", "claims.are-left-as-they-are", "metadata.finalizers"),
        ("it clears the status of devices", "claims.are-left-as-they-are", "status.devices of other drivers"),
        ("it leaves a finalizer on claims", "claims.go-when-they-are-deleted", "finalizers"),
        ("it gives up on a claim when the server fails", "claims.wait-for-the-server", "not within"),
        ("a claim of two pods is refused", "claims.are-prepared-for-all-users", "two pods"),
        ("a claim of a PodGroup is refused", "claims.are-prepared-for-all-users", "a PodGroup"),
        ("a claim that is being deleted is refused", "claims.that-are-being-deleted-are-prepared", "being deleted"),
        ("every user can write its state", "claims.leave-no-file-open-to-all", "mode 666"),
        # --- unprepare ---
        ("unprepare fails", "unprepare.answers-a-claim", "always"),
        ("it skips claims to unprepare", "unprepare.answers-each-claim-of-a-call", "skipped 1"),
        ("an empty unprepare call fails", "unprepare.accepts-an-empty-call", "no claims"),
        ("unknown claims fail", "unprepare.succeeds-for-an-unknown-claim", "unknown claim"),
        ("the second unprepare fails", "unprepare.can-be-repeated", "unprepared already"),
        ("unprepare reads the claim", "unprepare.needs-no-claim-object", "not found"),
        ("it stops at an unknown claim", "unprepare.does-known-claims-beside-unknown-ones", "still describe"),
        ("unprepare removes all its files", "unprepare.leaves-other-claims", "unresolvable"),
        ("unprepare of a share takes the others along", "unprepare.leaves-other-shares", "unresolvable"),
        (
            "unprepare of an administrator takes the device along",
            "unprepare.of-an-administrator-leaves-the-device",
            "unresolvable",
        ),
        ("an unprepared claim stays so", "unprepare.allows-to-prepare-again", "unprepared already"),
        ("unprepare goes by the name", "unprepare.goes-by-the-uid", "unresolvable"),
        ("it unprepares at most 3 claims a call", "unprepare.removes-each-claim-of-a-big-batch", "still describe"),
        ("each prepare leaks a descriptor", "unprepare.leaks-no-descriptors", "more open files"),
        ("each unprepare leaks a descriptor", "unprepare.leaks-no-descriptors", "more open files"),
        ("each claim leaks memory", "unprepare.leaks-no-memory", "time after time"),
        ("each claim leaves a file", "unprepare.leaves-no-files", "seen-"),
        ("unprepare frees the first device", "unprepare.frees-each-device", "in use"),
        ("errors of removing a file are ignored", "unprepare.reports-what-it-cannot-remove", "with success"),
        ("unprepare goes in two steps", "unprepare.reports-what-it-cannot-remove", "with an error"),
        ("it counts preparations", "unprepare.undoes-repeated-preparations", "still describe"),
        ("unprepare reads the claim", "unprepare.needs-no-server", "failed for ResourceClaim"),
        (
            "unprepare of an administrator frees the device",
            "unprepare.of-an-administrator-keeps-the-device-taken",
            "looked at it",
        ),
        ("each claim leaves a thread", "unprepare.leaks-no-threads", "more threads"),
        # --- concurrency ---
        ("two calls for a claim collide", "concurrency.of-calls-for-one-claim", "being prepared"),
        ("calls mix up their claims", "concurrency.of-calls-for-different-claims", "prepared ["),
        ("it unprepares one claim at a time", "concurrency.of-unprepare-calls", "busy"),
        ("it does not unprepare while it prepares", "concurrency.of-prepare-and-unprepare", "busy"),
        ("unprepare is ignored while it prepares", "concurrency.of-prepare-and-unprepare", "still describe"),
        ("GetInfo waits for calls", "concurrency.leaves-registration-answering", "DeadlineExceeded"),
        ("a given up call keeps the lock", "concurrency.survives-calls-that-were-given-up", "DeadlineExceeded"),
        ("it works on after a given up call", "concurrency.leaves-nothing-after-a-given-up-call", "still describe"),
        ("it has no lock for its state", "concurrency.gives-a-device-once", "both were prepared"),
        ("it has no lock for its state", "concurrency.is-remembered", "still describe"),
        # --- versions ---
        ("v1beta1 is offered and not served", "versions.are-served-as-offered", "v1beta1.DRAPlugin is offered"),
        ("it offers v1beta1 only", "versions.include-v1", "will remove v1beta1"),
        ("v1beta1 answers without devices", "versions.prepare-the-same", "over v1beta1"),
        ("v1beta1 unprepares nothing", "versions.share-their-state", "still describe"),
        # --- configuration ---
        ("it reads parameters of other drivers", "configuration.of-other-drivers-is-ignored", "unknown parameters"),
        ("it refuses all parameters", "configuration.of-a-claim-is-accepted", "unknown parameters"),
        ("it refuses class parameters", "configuration.of-a-class-is-accepted", "unknown parameters"),
        ("it ignores bad parameters", "configuration.that-is-bad-is-refused", "bad parameters"),
        ("it reads parameters of other requests", "configuration.of-other-requests-is-ignored", "unknown parameters"),
        ("parameters are for all requests", "configuration.of-one-request-stays-there", "user_color=red"),
        ("it ignores bad parameters of classes", "configuration.that-is-bad-is-refused", "FromClass"),
        ("bad parameters give no device", "configuration.that-is-bad-is-refused", "with the bad parameters"),
        (
            "parameters for several requests reach the first",
            "configuration.of-several-requests-reaches-each",
            "with req-1 gets none",
        ),
        ("it ignores unknown fields", "configuration.with-an-unknown-field-is-refused", "noSuchField"),
        ("parameters of the class win", "configuration.of-the-claim-wins", "of the first"),
        ("parameters of the claim hide the class", "configuration.of-a-class-stays-beside-one-of-the-claim", "get no"),
        ("the first parameters win", "configuration.that-comes-later-wins", "of the first"),
        (
            "parameters for a request miss its subrequests",
            "configuration.of-a-request-reaches-its-subrequests",
            "show nothing",
        ),
        ("parameters for a subrequest are lost", "configuration.of-a-subrequest-reaches-its-devices", "show nothing"),
        (
            "parameters for a subrequest are for all",
            "configuration.of-another-subrequest-stays-there",
            "req/large",
        ),
        ("parameters stay for the next claim", "configuration.of-one-claim-stays-there", "of another claim"),
        ("parameters of a claim are read once", "configuration.follows-a-new-allocation", "without parameters"),
        (
            "parameters of a prepared claim stay",
            "configuration.follows-an-allocation-made-meanwhile",
            "without parameters",
        ),
        ("a restart loses parameters", "configuration.outlasts-a-restart", "gives a container no"),
        ("a reboot loses parameters", "configuration.outlasts-a-reboot", "gives a container no"),
        # --- names ---
        ("its files are named by claims", "names.of-claims-may-be-long", "too long"),
        ("names with dots are refused", "names.of-claims-may-have-dots", "dots"),
        ("long requests are refused", "names.of-requests-may-be-long", "too long"),
        ("long namespaces are refused", "names.of-namespaces-may-be-long", "too long"),
        ("it ignores namespaces", "names.in-two-namespaces-are-two-claims", "twins"),
        ("unprepare goes by the name", "names.in-two-namespaces-are-two-claims-after-a-restart", "unresolvable"),
        # --- CDI ---
        ("it gives no ids", "cdi.ids-are-given", "no CDI id"),
        ("its ids are not qualified", "cdi.ids-are-qualified", "vendor/class=name"),
        ("it writes no files", "cdi.ids-are-described", "unresolvable"),
        ("a file is not JSON", "cdi.files-are-valid", "line 1"),
        ("a variable has no value", "cdi.files-are-valid", "DEVICE"),
        ("its edits are empty", "cdi.files-are-valid", "empty"),
        ("a device node has odd permissions", "cdi.files-are-valid", "xyz"),
        ("a device node has no path", "cdi.files-are-valid", "path"),
        ("a field is misspelt", "cdi.files-are-valid", "enviroment"),
        ("its CDI version is too low", "cdi.files-are-valid", "0.5.0"),
        ("the CDI version does not exist", "cdi.files-are-valid", "0.0.7"),
        ("the kind has no class", "cdi.files-are-valid", "kind"),
        ("a file has no devices", "cdi.files-are-valid", "no devices"),
        ("the name of a device is odd", "cdi.files-are-valid", "a b"),
        ("two files describe a device", "cdi.devices-are-described-once", "several files"),
        ("a host path is missing", "cdi.host-paths-exist", "/dev/no-such-device"),
        ("all devices have one id", "cdi.ids-differ-between-devices", "same ids"),
        ("it leaves its files", "cdi.files-go-with-the-claim", "still describe"),
        ("it writes a file once", "cdi.files-come-back", "unresolvable"),
        ("it cleans the CDI folder", "cdi.files-of-others-stay", "vendor.example.com-device.json"),
        ("it removes files that begin like its own", "cdi.files-of-neighbours-stay", "example.com-2-"),
        ("it removes all files of a claim", "cdi.files-of-neighbours-stay", "my-bad"),
        ("every user can write its files", "cdi.files-are-not-open-to-all", "mode 666"),
        ("it leaves temporary files", "cdi.scrap-is-not-left", "not a CDI file"),
        ("it writes files in place", "cdi.files-appear-whole", "rename"),
        ("it keeps damaged files", "cdi.files-come-back", "unresolvable"),
        ("it needs the CDI folder", "cdi.folder-comes-back", "No such file"),
        ("a failed call removes the files of its claim", "cdi.files-outlast-failed-writes", "unresolvable"),
        # --- what CDI edits contain ---
        ("every container gets the first device", "edits.are-of-the-device", "gpu-0"),
        ("every container gets the same", "edits.differ-between-devices", "BOARD=/dev/board0"),
        ("kind: two pools + containers get a device by its name alone", "edits.differ-between-devices", "second-"),
        ("edits of two requests are swapped", "edits.belong-to-their-request", "gpu-1 of gpu-1"),
        ("ids of two requests are swapped", "edits.belong-to-their-request", "gpu-1"),
        ("one device has ids", "edits.reach-each-request", "as one of two requests, nothing"),
        ("one device has ids", "edits.have-all-devices-of-a-request", "nothing of gpu-1"),
        ("a request gets its first device", "edits.have-all-devices-of-a-request", "nothing of gpu-1"),
        ("each request gets all devices", "edits.stay-out-of-other-requests", "gpu-1 as well"),
        ("two devices have one variable", "edits.do-not-overwrite-each-other", "loses DEVICE=gpu-0"),
        ("two devices are mounted at one path", "edits.do-not-overwrite-each-other", "loses /device="),
        ("it sets PATH", "edits.leave-what-the-image-says", "PATH=/opt/vendor/bin"),
        ("its ids have no device and files are kept", "edits.follow-a-new-allocation", "gpu-0"),
        ("edits are kept when a claim is unprepared", "edits.follow-a-new-allocation", "gpu-0"),
        ("each claim changes the files of all", "edits.outlast-other-claims", "changed from"),
        ("a restart gives all claims the first device", "edits.are-the-same-after-a-restart", "gpu-0"),
        ("a reboot takes the edits", "edits.are-the-same-after-a-reboot", "board0"),
        # --- device metadata ---
        ("its device metadata are v1alpha1 only", "metadata.have-a-version-of-the-release", "/v1beta1"),
        ("its device metadata are empty", "metadata.have-a-version-of-the-release", "KeyError('apiVersion')"),
        ("its device metadata name no device", "metadata.name-the-device", "and the claim holds"),
        ("it leaves device metadata", "metadata.go-with-the-claim", "still there"),
        # --- slices ---
        ("it publishes nothing", "slices.are-published", "not within"),
        ("it publishes under another name", "slices.are-published", "not within"),
        ("it publishes for another node", "slices.belong-to-the-node", "localhost"),
        ("its slices have no owner", "slices.are-owned-by-the-node", "owners []"),
        ("a slice of a pool is missing", "slices.make-complete-pools", "has 2 slices, and they say 3"),
        ("it keeps old generations", "slices.have-one-generation", "not within"),
        ("a device is published twice", "slices.name-each-device-once", "gpu-0"),
        ("a counter is not defined", "slices.define-the-counters-they-use", "consumes slices"),
        ("a standard attribute has an odd form", "slices.write-standard-attributes-as-agreed", "pcieRoot"),
        ("a NUMA node is -1", "slices.write-standard-attributes-as-agreed", "numaNode is {'int': -1}"),
        ("its slices have odd names", "slices.have-owner-and-driver-in-their-name", "does not contain"),
        ("it writes slices all the time", "slices.are-not-written-without-need", "wrote slices without a reason"),
        ("an attribute changes every ten seconds", "slices.are-not-measurements", "changed by themselves"),
        ("it publishes once", "slices.come-back-when-they-are-deleted", "not within"),
        ("it never corrects a slice", "slices.come-back-when-they-are-changed", "not within"),
        ("it never watches again after 410", "slices.come-back-after-an-expired-watch", "not within"),
        ("it never watches again after an end", "slices.come-back-after-a-watch-ended", "not within"),
        ("it publishes anew at each start", "slices.survive-a-restart", "after a restart"),
        ("it withdraws its slices when it stops", "slices.stay-when-the-driver-stops", "changed"),
        ("it deletes slices of other nodes", "slices.of-others-stay", "on another node"),
        ("it deletes slices of other drivers", "slices.of-others-stay", "of another driver"),
        ("it keeps left-over slices", "slices.left-over-are-removed", "not within"),
        ("taints are new at each start", "slices.keep-the-time-of-taints", "taints were added"),
        ("it publishes anew when all slices are gone", "slices.come-back-when-they-are-deleted", "deleted alone"),
        ("it publishes at its first start", "slices.come-back-at-a-start", "not within"),
        ("it stops publishing when a request fails", "slices.come-back-after-failed-requests", "not within"),
        ("it keeps the uid of its Node", "slices.follow-a-new-node", "not within"),
        ("a restart changes attributes", "slices.survive-a-restart", "pools and devices were"),
        ("its devices are in another order at each start", "slices.survive-a-restart", "pools and devices were"),
        # --- restart ---
        ("it ignores SIGTERM", "restart.ends-in-time", "SIGTERM"),
        ("its ids change at each start", "restart.prepares-the-same-again", "after a restart"),
        ("its ids change after a kill", "restart.prepares-the-same-after-a-kill", "after SIGKILL"),
        ("it unprepares only what it prepared itself", "restart.unprepares-what-was-prepared-before", "still describe"),
        ("it forgets what it prepared", "restart.unprepares-without-the-claim-object", "not found"),
        ("its state is written in place", "restart.may-come-while-it-prepares", "damaged"),
        ("unprepare goes in two steps", "restart.may-come-while-it-unprepares", "still describe"),
        ("it trusts its state", "restart.follows-an-allocation-made-meanwhile", "now holds"),
        ("it numbers its ids", "restart.keeps-devices-of-claims-apart", "came and went"),
        ("it reads prepared claims when it starts", "restart.is-not-asked-for-the-past", "a prepared claim is missing"),
        ("it forgets at its end what is in use", "restart.remembers-devices-in-use", "which another claim holds"),
        ("it removes its files when it stops", "restart.keeps-cdi-files", "unresolvable"),
        ("it removes its files when it starts", "restart.keeps-cdi-files", "unresolvable"),
        (
            "it removes files that contain its name when it starts",
            "restart.leaves-files-of-neighbours",
            "example.com-2-",
        ),
        ("a restart loses all devices but the first", "restart.prepares-the-same-again", "after a restart"),
        ("a restart loses the share", "restart.prepares-the-same-again", "after a restart"),
        ("a restart loses all devices but the first", "restart.prepares-the-same-after-a-kill", "after SIGKILL"),
        ("it writes files before its record", "restart.may-come-before-it-unprepares", "still describe"),
        ("its state is written in place", "restart.may-be-in-order-while-it-prepares", "damaged"),
        ("a start writes its state in place", "restart.may-come-while-it-starts", "damaged"),
        ("it remembers three claims", "restart.keeps-many-claims", "still describe"),
        ("unprepare of a share takes the others along", "restart.keeps-shares-apart", "unresolvable"),
        ("unprepare of an administrator takes the device along", "restart.keeps-administrators-apart", "unresolvable"),
        ("a restart loses adminAccess", "restart.keeps-administrators-apart", "keeps users off"),
        ("it names the subrequest after a restart", "restart.names-the-base-of-a-subrequest", "req/small"),
        (
            "it waits for ever when its start fails",
            "restart.may-come-while-the-server-fails",
            "not registered",
        ),
        ("a restart forgets counters in use", "restart.remembers-counters-in-use", "draws on the counters"),
        # --- reboot ---
        ("it does not start after a reboot", "reboot.lets-the-driver-register", "does not fit"),
        ("it trusts its state", "reboot.brings-cdi-files-back", "unresolvable"),
        ("missing files fail", "reboot.lets-claims-be-unprepared", "no CDI file"),
        ("a device without files stays taken", "reboot.frees-devices", "in use"),
        ("a reboot loses all devices but the first", "reboot.gives-the-same-again", "after a reboot"),
        ("it does not start with a damaged state", "damage.lets-the-driver-start", "ended"),
        ("it forgets a damaged state", "damage.gives-nothing-wrong", "which another claim holds"),
        # --- rolling update ---
        ("one socket for all instances", "rolling.has-two-instances-at-once", "both instances use"),
        ("its ids change at each start", "rolling.keeps-the-answers", "from the new instance"),
        (
            "it unprepares only what it prepared itself",
            "rolling.unprepares-what-the-old-instance-prepared",
            "still describe",
        ),
        ("it trusts its memory", "rolling.may-go-back-to-the-old-instance", "the old instance prepared"),
        ("it takes all sockets along", "rolling.ends-without-harm", "not registered any more"),
        ("instances fight over slices", "rolling.leaves-the-slices", "uid and version"),
        ("it removes its files when it stops", "rolling.keeps-cdi-files", "unresolvable"),
        ("it forgets at its end what is in use", "rolling.remembers-devices-in-use", "which another claim holds"),
        ("it writes what it knows at its end", "rolling.keeps-what-the-new-instance-did", "in use"),
        # --- health ---
        ("health says nothing", "health.comes-at-once", "not within"),
        (f"{HEALTH_V1} says nothing", "health.comes-at-once", "not within"),
        ("health is offered and not served", "health.is-offered-if-it-is-served", "not served"),
        ("health is served and not offered", "health.is-offered-if-it-is-served", "not offered"),
        (f"{HEALTH_V1} is offered and not served", "health.is-offered-if-it-is-served", f"{HEALTH_V1} is offered"),
        (f"{HEALTH_V1} is served and not offered", "health.is-offered-if-it-is-served", f"{HEALTH_V1} is not offered"),
        (f"{HEALTH_V1} is served and not offered", "health.is-offered-to-new-kubelets", "prefer v1"),
        (f"{HEALTH_ALPHA} is served and not offered", "health.is-offered-to-old-kubelets", "up to 1.36"),
        (f"{HEALTH_V1} says otherwise", "health.is-the-same-in-each-version", "differ in"),
        ("health names an unknown device", "health.names-published-devices", "gpu-77"),
        ("health leaves a device out", "health.covers-all-devices", "tainted-0"),
        (f"{HEALTH_V1} leaves a device out", "health.covers-all-devices", f"{HEALTH_V1} does not name"),
        ("later health is partial", "health.covers-all-devices-again", "the second message does not name"),
        ("health names a device twice", "health.names-each-device-once", "twice"),
        ("health has an unknown value", "health.has-known-values", "health 7"),
        ("health has a long message", "health.has-short-messages", "2000 bytes"),
        ("health has a negative time-out", "health.has-no-negative-timeouts", "-1"),
        ("health has times in milliseconds", "health.has-times-in-seconds", "more than a day in the future"),
        ("health comes once", "health.is-repeated-in-time", "not within"),
        (f"{HEALTH_V1} comes once", "health.is-repeated-in-time", "not within"),
        ("only the first stream gets health", "health.is-told-to-each-stream", "not within"),
        ("one stream at a time gets health", "health.is-told-to-streams-at-once", "not within"),
        ("streams that ended count", "health.survives-streams-that-were-given-up", "not within"),
        ("only the first process tells health", "health.comes-back-after-a-restart", "not within"),
        ("calls wait for the end of the health stream", "health.leaves-calls-alone", "DeadlineExceeded"),
    ]
]

VARIANTS: dict[str, tuple[str, ...]] = {
    "variant: it watches instead of looking now and then": (),
    "variant: nothing tells devices apart": (),
    "variant: one CDI device for the whole claim": ("edits.stay-out-of-other-requests",),
    "variant: a number on top": (),
    "variant: one variable for all": ("edits.do-not-overwrite-each-other",),
    "variant: something new each time": (),
    "variant: it refuses claims that are not reserved": (),
    "it gives no ids": (),
    "it has one device": (),
    "it lends a device twice": (),
    "it shares all devices": (),
}
"""Ways in which drivers may differ, with the checks that mind; no other check that is about contents does."""


def table() -> str:
    """The faults by the check that finds them, in Markdown."""
    found: dict[str, list[str]] = {}
    for planted in FAULTS:
        found.setdefault(planted.check, []).append(planted.fault)
    rows = [f"| `{check}` | {'; '.join(faults)} |" for check, faults in found.items()]
    return "\n".join(["| Check | Faults of the bad driver that it finds |", "|---|---|", *rows, ""])


PATIENT = Limits(
    info=10,
    notify=10,
    registered=20,
    published=20,
    restored=20,
    stopped=20,
    answer=10,
    quiet=0.5,
    idle=12,
    gone=20,
    settle=0.8,
    tick=0.02,
)
"""For what is expected to come, on a machine that has much else to do."""
LIMITS = replace(
    PATIENT, info=0.5, notify=0.5, call=1.5, registered=1.5, published=1.5, restored=1.5, answer=1, gone=1.5
)
"""For what is expected not to come."""
PARAMETERS = Parameters(good={"color": "red"}, bad={"volume": "11"})
OpenBench = Callable[..., AbstractAsyncContextManager[Bench]]
"""``async with open_bench("prepare fails") as bench``: a bench with the bad driver and these faults."""
PROCESS = (sys.executable, str(Path(__file__).with_name("bad_driver.py")), "{kubelet}")
_numbers = itertools.count(1)


def benches_on(server: DevApiServer) -> OpenBench:
    """Each bench has a node, a driver's name and a token of its own."""

    @asynccontextmanager
    async def open_one(
        *faults: str, limits: Limits = PATIENT, is_a_process: bool = False, release: Release = NEWEST
    ) -> AsyncIterator[Bench]:
        number = next(_numbers)
        with tempfile.TemporaryDirectory(prefix="dt-") as folder:
            kubeconfig = server.write_kubeconfig(Path(folder) / "kubeconfig", server.tokens.credential(ADMIN))
            place = Place.below(Path(folder) / "n", f"node-{number}", kubeconfig)
            launcher: Launcher = BadLauncher(f"bad-{number}.example.com", *faults)
            if is_a_process:
                launcher = CommandLauncher([*PROCESS, *faults], Path(folder) / "driver.log", limits)
            async with open_bench(place, launcher, limits, PARAMETERS, server, release) as bench:
                yield bench

    return open_one


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(table(), end="")
