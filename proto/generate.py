"""Makes the Python modules and type stubs from the ``.proto`` files beside this script.

Run it with the ``dev`` extra installed: ``python proto/generate.py [--into FOLDER]``. The generator
is an old one on purpose (see ``docs/dependencies.md``): generated code refuses to run on a protobuf or
grpc older than its generator, so the oldest supported generator gives code for every newer runtime.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
    import grpc_tools
    from grpc_tools import protoc

    protos = sorted(SOURCE.glob("dra_proto/**/*.proto"))
    scripts = Path(sys.executable).parent
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    plugins = [f"--plugin=protoc-gen-{kind}={scripts / f'protoc-gen-{kind}'}" for kind in ("mypy", "mypy_grpc")]
    includes = [f"-I{SOURCE}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    names = [str(proto.relative_to(SOURCE)) for proto in protos]
    if status := protoc.main(["protoc", *includes, *plugins, *outputs, *names]):
        raise RuntimeError(f"protoc ended with status {status}")
    return sorted(path.relative_to(into) for path in into.glob("dra_proto/**/api_pb2*.py*") if path.suffix != ".pyc")


def main() -> int:
    """The command line; exit code 1 when the generators are not the pinned ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, default=SOURCE, help="root folder to write below (default: in place)")
    into = parser.parse_args().into
    if wrong := wrong_generators():
        print(f"wrong generator: {', '.join(wrong)}; install the dev extra: pip install -e '.[dev]'", file=sys.stderr)
        return 1
    for path in generate(into):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
