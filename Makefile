# The commands of a newcomer (demo, test) and of daily work. Everything lives in .venv; nothing else is touched.
# Another Python, beside the first one: make PYTHON=python3.13 VENV=.venv-3.13 pytest
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n auto --dist loadscope --no-loadscope-reorder
TESTS ?=
# Those that speak to the outside of the allocator. The others change constants or derive classes, which compiled code
# does not see.
COMPILED_TESTS := $(addprefix tests/allocator/test_,corpus.py candidates.py refusals.py fixes.py pools.py search.py \
  taint_rules.py extended.py hard_problems.py all_different.py)

.PHONY: help install demo test pytest compiled lint proto settings lock sbom audit image clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

QUIET = $$([ -t 2 ] || echo --quiet)
INSTALL = --constraint requirements.lock --editable '.[dev]'
DOCS = --constraint requirements.lock --editable '.[dev,docs]'
UV = UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true $(BIN)/uv pip install $(QUIET) --python $(BIN)/python

install: $(VENV)/.installed  ## make .venv with everything in it (does nothing when it is up to date)

$(VENV)/.installed: pyproject.toml requirements.lock
	@command -v $(PYTHON) > /dev/null || { echo "there is no $(PYTHON): try make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kopf-dra needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "1 of 2: the installer, uv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
	@echo "2 of 2: about $$(grep -c == requirements.lock) packages, downloaded and compiled; this may take a minute"
	@$(UV) --compile-bytecode $(INSTALL) || $(BIN)/python -m pip install $(INSTALL)  # it reads pip.conf, too
	@touch $@
	@echo "$(VENV) is ready"

demo: install  ## run the whole story on this machine: API server, nodes, plugins, operator, pods
	$(BIN)/dra-devcluster demo

test: lint pytest  ## run every check: lint, types, import contracts, tests

pytest: install  ## run the tests only
	$(BIN)/pytest $(PYTEST_ARGS) $(TESTS)

compiled: install  ## build a wheel with the allocator compiled, and test the answers of that
	rm -rf build
	KOPF_DRA_COMPILE=1 $(BIN)/python -m hatchling build --target wheel --directory build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/site build/*.whl
	PYTHONPATH=build/site $(BIN)/python -c \
	  "from dra_operator.allocator import allocator as a; assert a.__file__.endswith('.so'), a.__file__"
	PYTHONPATH=build/site $(BIN)/pytest $(PYTEST_ARGS) $(COMPILED_TESTS)

lint: install  ## lint, formatting, types, import contracts, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check

docs: $(VENV)/.docs  ## build the documentation as a site, in site/; fails on a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.docs: $(VENV)/.installed
	@$(UV) $(DOCS) || $(BIN)/python -m pip install --quiet $(DOCS)
	@touch $@

proto: install  ## make the gRPC code from proto/**/*.proto again
	$(BIN)/python proto/generate.py

settings: install  ## write docs/operator-settings.md and the schema of the Helm chart again from the settings
	$(BIN)/python -m dra_operator.app.settings_page > docs/operator-settings.md
	$(BIN)/python -m dra_operator.app.chart_schema > manifests/chart/values.schema.json

HASHES = $(BIN)/uv pip compile --quiet --universal --python-version 3.13 --generate-hashes --no-emit-index-url --no-header \
  --no-annotate --constraint requirements.lock

lock: install  ## pin the newest allowed dependency versions in requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-emit-index-url --no-header \
	  --no-annotate --upgrade --output-file requirements.lock pyproject.toml
	$(HASHES) --extra otel --output-file requirements-image.lock pyproject.toml
	echo 'hatchling>=1.27' | $(HASHES) --output-file requirements-build.lock -

sbom: install  ## write what the image holds to build/kopf-dra.cdx.json, an SBOM in CycloneDX's form
	$(BIN)/python supply/sbom.py build/kopf-dra.cdx.json

audit: install  ## look up known vulnerabilities of what the image holds; "Error 75": the service was not reached
	@.ci/audit

ENGINE ?= docker

image:  ## build the container image with ENGINE (docker, podman), as kopf-dra:VERSION
	version=$$(sed -n 's/^VERSION = "\(.*\)"/\1/p' proto/dra_api/version.py); \
	$(ENGINE) build --build-arg "VERSION=$$version" --build-arg "REVISION=$$(git rev-parse HEAD)" \
	  --tag "ghcr.io/kopf-dra/kopf-dra:$$version" .

clean:  ## remove .venv and caches
	rm -rf .venv .venv-* build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
