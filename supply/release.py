"""Make all files of a release, in one folder, with their hashes.

    python supply/release.py build/release [--platform x86_64-manylinux_2_28 ...]
    python supply/release.py --check-tag v0.1.0    # fails if the tag is not the version, or CHANGELOG.md lacks it
    python supply/release.py --notes               # prints what CHANGELOG.md says of the version

* the wheel and the source;
* ``install.yaml``: the operator and its roles; ``install-with-simulated-driver.yaml``: with a driver to try it;
* ``kubectl-dra-OS-MACHINE.tar.gz``: ``kubectl dra`` as one file for each platform (``archive.py``), and the licence;
* ``dra.yaml``: the manifest by which krew installs these;
* ``SHA256SUMS``.

It needs kubectl, which renders the manifests, and reaches the package index.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from archive import PLATFORMS, PYTHONS, ROOT, archive, fetched, tag_of
from dra_api import VERSION

HOME: Final = "https://github.com/kopf-dra/kopf-dra"
MANIFESTS: Final = {
    "install.yaml": ("manifests",),
    "install-with-simulated-driver.yaml": ("manifests", "manifests/examples/simulated-driver"),
}
DESCRIPTION: Final = """\
Answers questions about devices of Dynamic Resource Allocation: utilisation, holders, why a pod waits and which changes
were proven to help, what would fit, what a drain or a taint would do. It only reads, apart from doctor --fix and
defrag --apply.
"""
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""What krew calls them."""


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(
        description="Make all files of a release.", epilog="Example: python supply/release.py build/release"
    )
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build/release", help="where to (build/release)")
    parser.add_argument("--check-tag", metavar="TAG", help="make nothing; fail if TAG does not name this version")
    parser.add_argument("--notes", action="store_true", help="make nothing; print the notes of this version")
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="repeatable (all)")
    options = parser.parse_args()
    if options.check_tag or options.notes:
        text = notes((ROOT / "CHANGELOG.md").read_text())
        if options.notes:
            print(text)
        elif options.check_tag != f"v{VERSION}":
            sys.exit(f"the tag is {options.check_tag}, the version v{VERSION} (proto/dra_api/__init__.py)")
        return
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", folder.resolve()], cwd=ROOT, check=True)
    for name, sources in MANIFESTS.items():
        (folder / name).write_text(rendered(*sources))
    packed: dict[str, str] = {}
    for platform in options.platform or PLATFORMS:
        content = archive({tag_of(python, platform): fetched(python, platform) for python in PYTHONS})
        packed[platform] = f"kubectl-dra-{PLATFORMS[platform]}.tar.gz"
        (folder / packed[platform]).write_bytes(tarball({"kubectl-dra": content, "LICENSE": _licence()}))
    krew = plugin({PLATFORMS[platform]: _sha256(folder / name) for platform, name in packed.items()})
    (folder / "dra.yaml").write_text(yaml.safe_dump(krew, sort_keys=False))
    made = [
        *folder.glob(f"kopf_dra-{VERSION}*"),
        *(folder / name for name in (*MANIFESTS, *packed.values(), "dra.yaml")),
    ]
    (folder / "SHA256SUMS").write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(made)))


def notes(changelog: str) -> str:
    """Return the section of this version. Ends the process if there is none, or if it has no date."""
    pattern = rf"^## \[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    found = re.search(pattern, changelog, re.DOTALL | re.MULTILINE)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section `## [{VERSION}] - DATE`")
    return found[1].strip()


def rendered(*sources: str) -> str:
    """Return folders of manifests as one text."""
    commands = [["kubectl", "kustomize", str(ROOT / source)] for source in sources]
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for command in commands]
    text = "---\n".join(each.stdout for each in done)
    return f"# kopf-dra {VERSION}: kubectl apply -f FILE\n{text}"


def tarball(files: Mapping[str, bytes]) -> bytes:
    """A .tar.gz that is equal for equal files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name == "kubectl-dra" else 0o644
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def plugin(hashes: Mapping[str, str]) -> dict[str, Any]:
    """krew's manifest. ``hashes``: of the .tar.gz of each platform."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "dra"},
        "spec": {
            "version": f"v{VERSION}",
            "homepage": f"{HOME}/blob/main/docs/kubectl-dra.md",
            "shortDescription": "Who has which device, what is free, why a pod waits",
            "description": DESCRIPTION,
            "caveats": f"Needs Python {PYTHONS[0]} to {PYTHONS[-1]} as python3 on the PATH.\n",
            "platforms": [_platform(name, each) for name, each in hashes.items()],
        },
    }


def _platform(name: str, sha256: str) -> dict[str, Any]:
    system, machine = name.split("-")
    return {
        "selector": {"matchLabels": {"os": system, "arch": MACHINES[machine]}},
        "uri": f"{HOME}/releases/download/v{VERSION}/kubectl-dra-{name}.tar.gz",
        "sha256": sha256,
        "files": [{"from": "kubectl-dra", "to": "."}, {"from": "LICENSE", "to": "."}],
        "bin": "kubectl-dra",
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _licence() -> bytes:
    return (ROOT / "LICENSE").read_bytes()


if __name__ == "__main__":
    main()
