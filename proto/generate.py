"""Makes the Python modules and type stubs from the ``.proto`` files beside this script.

Run it with the ``dev`` extra installed::

    python proto/generate.py --check

The generator is an old one on purpose (see ``docs/dependencies.md``): generated code refuses to run on a protobuf or
grpc older than its generator, so the oldest supported generator gives code for every newer runtime.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

GENERATORS = {"grpcio-tools": "1.71.0", "mypy-protobuf": "3.6.0"}
SOURCE = Path(__file__).resolve().parent


def wrong_generators() -> list[str]:
    """What is not installed as pinned, in words; empty when the output will be comparable."""
    found: dict[str, str] = {}
    for name in GENERATORS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return [f"{name} {found[name]} instead of {wanted}" for name, wanted in GENERATORS.items() if found[name] != wanted]


def generate(into: Path) -> list[Path]:
    """Write the modules for all protos below ``into``; their paths, relative to it."""
    import grpc_tools  # type: ignore[import-untyped]  # ships no types
    from grpc_tools import protoc

    protos = sorted(SOURCE.glob("dra_proto/**/*.proto"))
    scripts = Path(sys.executable).parent
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python")]
    outputs += [f"--{kind}_out=quiet:{into}" for kind in ("mypy", "mypy_grpc")]
    plugins = [f"--plugin=protoc-gen-{kind}={scripts / f'protoc-gen-{kind}'}" for kind in ("mypy", "mypy_grpc")]
    includes = [f"-I{SOURCE}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    names = [str(proto.relative_to(SOURCE)) for proto in protos]
    if status := protoc.main(["protoc", *includes, *plugins, *outputs, *names]):
        raise RuntimeError(f"protoc ended with status {status}")
    return sorted(path.relative_to(into) for path in into.glob("dra_proto/**/api_pb2*.py*") if path.suffix != ".pyc")


def stale() -> list[str]:
    """The generated files that are missing or differ from what the protos give now."""
    with TemporaryDirectory() as folder:
        fresh = {path: (Path(folder) / path).read_bytes() for path in generate(Path(folder))}
    old = {path.relative_to(SOURCE) for path in SOURCE.glob("dra_proto/**/api_pb2*.py*") if path.suffix != ".pyc"}
    differing = {path for path, text in fresh.items() if path not in old or (SOURCE / path).read_bytes() != text}
    return sorted(map(str, differing | (old - fresh.keys())))


def main() -> int:
    """The command line; exit code 1 when files are stale, or cannot be made with the pinned generators."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, but fail if something would change")
    check = parser.parse_args().check
    if wrong := wrong_generators():
        print(f"wrong generator: {', '.join(wrong)}; install the dev extra: pip install -e '.[dev]'", file=sys.stderr)
        if check:
            print("NOT CHECKED whether the generated code is fresh", file=sys.stderr)
        return 0 if check else 1
    if not check:
        generate(SOURCE)
        return 0
    for path in (found := stale()):
        print(f"stale: proto/{path}; run python proto/generate.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
