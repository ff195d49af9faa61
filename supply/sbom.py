"""Write the bill of materials (SBOM) of the image, in CycloneDX's JSON: ``make sbom``.

    python supply/sbom.py build/kopf-dra.cdx.json

It names what the Dockerfile installs: kopf-dra, each package of ``requirements-image.lock`` with its version and the
hashes that the lock accepts, and the base image by its digest. What the base holds (Python, Debian's packages) is the
matter of the base's own SBOM. Licences and who needs whom come from the packages as installed here; a package that is
not installed, or in another version, has neither.

Nothing is fetched. A line of the lock that is no pinned package with hashes ends the command, and nothing is written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from dra_api import VERSION
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("operator", "plugin", "otel")
"""Extras of this project in the image."""
IMAGE = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux"}


@dataclass(frozen=True)
class Locked:
    """A package in a lock: its version, and the SHA-256 of each file that may be installed."""

    name: str
    version: str
    hashes: tuple[str, ...]


def read_lock(text: str) -> Iterator[Locked]:
    """The packages of a lock in pip's format; ``ValueError`` names what is not pinned, or twice."""
    seen: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        head, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
        try:
            requirement = Requirement(head)
        except InvalidRequirement as error:
            raise ValueError(f"{head!r} is no requirement: run make lock") from error
        pin = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
        if pin is None or not hashes:
            raise ValueError(f"{head!r} has no exact version with a SHA-256: run make lock")
        name = canonicalize_name(requirement.name)
        if name in seen:
            raise ValueError(f"{name} is locked twice, as {seen[name]} and as {pin[1]}")
        seen[name] = pin[1]
        yield Locked(name, pin[1], tuple(hashes))


def package(locked: Locked) -> Component:
    """A package of the index as a component, with its licence if the same version is installed."""
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/simple/{locked.name}/"),
        comment="the files that the lock accepts",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=value) for value in locked.hashes],
    )
    return Component(
        name=locked.name,
        version=locked.version,
        purl=PackageURL("pypi", name=locked.name, version=locked.version),
        bom_ref=f"{locked.name}=={locked.version}",
        licenses=licences(locked.name, locked.version),
        external_references=[files],
    )


def installed(name: str, version: str) -> Distribution | None:
    """The package as installed here; none if it is absent or another version."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    return found if found.version == version else None


def licences(name: str, version: str) -> list[License]:
    """What the installed package says: an SPDX expression, else its licence field, else its classifiers."""
    found = installed(name, version)
    if found is None:
        return []
    metadata = found.metadata
    names = metadata.get_all("License-Expression", []) or metadata.get_all("License", [])
    if not names or "\n" in names[0]:  # some put the whole text of the licence there
        classifiers = metadata.get_all("Classifier", [])
        names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    return [LicenseFactory().make_from_string(value) for value in names]


def needs(name: str, version: str) -> set[str]:
    """The packages that the installed package needs in the image, by name."""
    found = installed(name, version)
    wanted = [Requirement(line) for line in (found and found.requires) or []]
    return {canonicalize_name(one.name) for one in wanted if one.name != name and _is_wanted(one)}


def _is_wanted(one: Requirement) -> bool:
    return one.marker is None or any(one.marker.evaluate({**IMAGE, "extra": extra}) for extra in EXTRAS)


def base_image(dockerfile: str) -> Component:
    """The image that the Dockerfile starts from, by its digest."""
    found = re.search(r"^ARG BASE=(\S+/([^:/\s]+)):([^@\s]+)@(sha256:[0-9a-f]{64})$", dockerfile, re.MULTILINE)
    if found is None:
        raise ValueError("the Dockerfile has no line ARG BASE=REPOSITORY:TAG@sha256:DIGEST")
    repository, name, tag, digest = found.groups()
    return Component(
        type=ComponentType.CONTAINER,
        name=repository,
        version=tag,
        purl=PackageURL("oci", name=name, version=digest, qualifiers={"repository_url": repository, "tag": tag}),
        bom_ref=f"{repository}@{digest}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
    )


def bill(lock: str, dockerfile: str) -> Bom:
    """The bill of materials of an image with these packages on the base of this Dockerfile."""
    bom = Bom()
    bom.metadata.component = Component(
        type=ComponentType.APPLICATION,
        name="kopf-dra",
        version=VERSION,
        purl=PackageURL("pypi", name="kopf-dra", version=VERSION),
        bom_ref=f"kopf-dra=={VERSION}",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    packages = {locked.name: package(locked) for locked in read_lock(lock)}
    base = base_image(dockerfile)
    bom.components.update(packages.values(), [base])
    for component in packages.values():
        wanted = needs(component.name, component.version or "")
        bom.register_dependency(component, [packages[name] for name in wanted & packages.keys()])
    roots = needs("kopf-dra", VERSION)
    bom.register_dependency(bom.metadata.component, [base, *(packages[name] for name in roots & packages.keys())])
    return bom


def main(target: Path) -> int:
    """Write the SBOM to a file, whose folder is made."""
    try:
        bom = bill((ROOT / "requirements-image.lock").read_text(), (ROOT / "Dockerfile").read_text())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    except (ValueError, OSError) as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    print(f"{target}: kopf-dra {VERSION}, {len(bom.components) - 1} packages, and the base image")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, metavar="FILE", help="where to; its folder is made")
    sys.exit(main(parser.parse_args().target))
