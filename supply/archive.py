"""Make ``kubectl dra`` one file that a Python runs, without an installation.

    python supply/archive.py build/kubectl-dra --python 3.11 --platform x86_64-manylinux_2_28

For each Python and platform uv fetches the wheels of ``requirements-image.lock``, checked by their hashes. What is the
same everywhere is in the file once. Equal inputs make an equal file. ``archive_main.py`` is what it starts with.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Final

from archive_main import BUILD

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = ROOT / "requirements-image.lock"
OWN: Final = ("proto/dra_api", "kube/dra_kube", "cel/dra_cel", "ledger/dra_ledger", "operator/dra_operator")
LEFT_OUT: Final = ("grpcio", "protobuf", "googleapis-common-protos", "kopf", "opentelemetry-", "prometheus-client")
"""Beginnings of packages that the operator and drivers need, and kubectl dra does not."""
UNUSED: Final = re.compile(
    r"^(bin/|kubernetes/(aio|test)/|kubernetes/client/api/[^_]|.*/tests?/|.*\.(pyi|pyx|pxd|c|h)$)"
)
"""Of the kubernetes client only the reader of kubeconfigs is used."""
PYTHONS: Final = ("3.11", "3.12", "3.13")
PLATFORMS: Final = {
    "x86_64-manylinux_2_28": "linux-x86_64",
    "aarch64-manylinux_2_28": "linux-aarch64",
    "x86_64-apple-darwin": "darwin-x86_64",
    "aarch64-apple-darwin": "darwin-arm64",
}
"""uv's names, and what Python says there."""
Files = Mapping[str, bytes]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the file to make")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="repeatable (all)")
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="repeatable (all)")
    options = parser.parse_args()
    pairs = list(product(options.python or PYTHONS, options.platform or PLATFORMS))
    content = archive({tag_of(*pair): fetched(*pair) for pair in pairs})
    options.target.parent.mkdir(parents=True, exist_ok=True)
    options.target.write_bytes(content)
    options.target.chmod(0o755)
    print(f"{options.target}: {len(content) / 1e6:.1f} MB, for {', '.join(tag_of(*pair) for pair in pairs)}")


def archive(trees: Mapping[str, Files]) -> bytes:
    """The file, of what each tag needs beside our own packages."""
    own = {name: data for folder in OWN for name, data in _read(ROOT / folder, (ROOT / folder).parent)}
    common = {
        name: data
        for name, data in next(iter(trees.values())).items()
        if all(tree.get(name) == data for tree in trees.values())
    }
    files = {f"common/{name}": data for name, data in {**common, **own}.items()}
    for tag, tree in trees.items():
        files |= {f"only/{tag}/{name}": data for name, data in tree.items() if name not in common}
    files["__main__.py"] = (ROOT / "supply/archive_main.py").read_bytes()
    build = hashlib.sha256(repr(sorted((name, hashlib.sha256(data).digest()) for name, data in files.items())).encode())
    files[BUILD] = build.hexdigest()[:16].encode()
    made = BytesIO()
    made.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as packed:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # of 1980, so that equal files make an equal archive
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            packed.writestr(entry, data)
    return made.getvalue()


def fetched(python: str, platform: str) -> Files:
    """What the locked packages have for a Python and a platform."""
    with tempfile.TemporaryDirectory() as folder:
        lock, target = Path(folder) / "lock", Path(folder) / "target"
        lock.write_text("".join(_needed(LOCK.read_text().splitlines(keepends=True))))
        command: Sequence[str | Path] = [
            Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--target", target, "--no-deps",
            "--python-version", python, "--python-platform", platform, "--only-binary", ":all:", "--require-hashes",
            "--requirement", lock,
        ]  # fmt: skip
        subprocess.run(command, check=True, env={**os.environ, "UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"})
        return dict(_read(target, target))


def _needed(lines: Sequence[str]) -> Iterator[str]:
    """Lines of the lock: a package, and indented its hashes."""
    is_needed = True
    for line in lines:
        if line[:1].isalnum():
            is_needed = not line.startswith(LEFT_OUT)
        if is_needed:
            yield line


def _read(folder: Path, base: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(base).as_posix()
        if path.is_file() and "__pycache__" not in path.parts and not UNUSED.match(name) and path.name != ".lock":
            yield name, path.read_bytes()


def tag_of(python: str, platform: str) -> str:
    """What ``archive_main.tag_here`` says there."""
    return f"cp{python.replace('.', '')}-{PLATFORMS[platform]}"


if __name__ == "__main__":
    main()
