# The commands of a newcomer (demo, test) and of daily work. Everything lives in .venv; nothing else is touched.
# Another Python, beside the first one: make PYTHON=python3.13 VENV=.venv-3.13 pytest
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n auto --dist loadscope --no-loadscope-reorder
TESTS ?=
# Rooms that start no process and open no socket, and the layout of the project.
PURE := allocator api cache cdi cel eviction layout ledger scheduling
# Those that speak to the outside of the allocator. The others change constants or derive classes, which compiled code
# does not see.
COMPILED_TESTS := $(addprefix tests/allocator/test_,corpus.py alphas.py candidates.py refusals.py fixes.py pools.py \
  search.py taint_rules.py extended.py hard_problems.py all_different.py device_orders.py) \
  tests/ledger/test_drawn.py tests/ledger/test_ledger.py tests/scheduling/test_strategies.py

# Images often set it; then hundreds of processes that tests start would compile the same sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo docs test quick pytest compiled work lint proto settings sentences lock sbom audit release image clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

QUIET = $$([ -t 2 ] || echo --quiet)
UV = UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true $(BIN)/uv pip install $(QUIET) --python $(BIN)/python
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# uv checks each file by the hash that a constraint has. pip does so only for a whole list: it installs everything.
PINNED = --constraint requirements.lock --build-constraint requirements-build.lock
WITH_PIP = { $(PIP) --require-hashes --requirement requirements.lock --requirement requirements-build.lock && \
  $(PIP) --no-deps --no-build-isolation --editable .; }

install: $(VENV)/.installed  ## make .venv with everything in it (does nothing when it is up to date)

$(VENV)/.installed: pyproject.toml requirements.lock requirements-build.lock requirements-uv.lock
	@command -v $(PYTHON) > /dev/null || { echo "there is no $(PYTHON): try make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kopf-dra needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "1 of 2: the installer, uv"
	@$(PIP) --require-hashes --requirement requirements-uv.lock
	@echo "2 of 2: about $$(grep -c == requirements.lock) packages, downloaded and compiled; this may take a minute"
	@$(UV) --compile-bytecode $(PINNED) --editable '.[dev]' || $(WITH_PIP)  # pip reads pip.conf as well
	@touch $@
	@echo "$(VENV) is ready"

demo: install  ## run the full demo, locally: API server, nodes, plugins, operator, pods
	$(BIN)/dra-devcluster demo

test: install  ## run every check: lint, types, import contracts, tests
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

quick: install  ## run the tests of the pure rooms and of the layout only: for the daily loop
	$(BIN)/pytest --quiet $(PYTEST_ARGS) $(addprefix tests/,$(PURE))

# Many tests wait for processes and clocks: six workers keep two processors busy.
pytest: export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr 3 \* $$(getconf _NPROCESSORS_ONLN))
pytest: $(VENV)/.collected  ## run the tests only
	$(BIN)/pytest $(PYTEST_ARGS) $(TESTS)

# Once, or each worker would rewrite the assertions of all tests.
$(VENV)/.collected: $(VENV)/.installed
	@$(BIN)/pytest --quiet --collect-only $(TESTS) > /dev/null && touch $@ || true  # what is wrong, the run says

compiled: install  ## build a wheel with the allocator compiled, and test the answers of that
	rm -rf build
	KOPF_DRA_COMPILE=1 $(BIN)/python -m hatchling build --target wheel --directory build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/site build/*.whl
	PYTHONPATH=build/site $(BIN)/python -c \
	  "from dra_operator.allocator import allocator as a; assert a.__file__.endswith('.so'), a.__file__"
	PYTHONPATH=build/site $(BIN)/python -c \
	  "from dra_operator.scheduling import strategies as f; assert f.__file__.endswith('.so'), f.__file__"
	PYTHONPATH=build/site $(BIN)/pytest $(PYTEST_ARGS) $(COMPILED_TESTS)

work: install  ## count the instructions of fixed pieces of work, and fail if one needs 3 % more than recorded
	$(BIN)/python benchmarks/counted_work.py --check

lint: install  ## lint, formatting, types, import contracts, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check

docs: $(VENV)/.docs  ## build the documentation as a site, in site/; fails on a dead link
	.ci/mermaid
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet it counts no warnings

$(VENV)/.docs: $(VENV)/.installed
	@$(UV) $(PINNED) --editable '.[dev,docs]' || $(WITH_PIP)
	@touch $@

proto: install  ## make the gRPC code from proto/**/*.proto again
	$(BIN)/python proto/generate.py

settings: install  ## write the pages of settings and feature gates, and the schema of the Helm chart, again
	$(BIN)/python -m dra_operator.app.settings_page page > docs/operator-settings.md
	$(BIN)/python -m dra_operator.app.settings_page schema > manifests/values.schema.json
	$(BIN)/python docs/gates_page.py > docs/feature-gates.md

sentences: install  ## list every text that people read, in build/sentences.txt
	@mkdir -p build
	$(BIN)/python docs/sentences.py > build/sentences.txt

HASHES = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate

lock: install  ## pin the newest allowed dependency versions, with the hashes of their files, in requirements*.lock
	$(HASHES) --python-version 3.11 --all-extras --upgrade --output-file requirements.lock pyproject.toml
	$(HASHES) --python-version 3.13 --constraint requirements.lock --extra operator --extra plugin --extra otel --output-file requirements-image.lock \
	  pyproject.toml
	printf '%s\n' 'hatchling>=1.27' 'mypy>=1.15' 'setuptools>=80' msgspec | $(HASHES) --python-version 3.11 --constraint requirements.lock \
	  --output-file requirements-build.lock -
	echo 'uv>=0.5' | $(HASHES) --python-version 3.11 --upgrade --output-file requirements-uv.lock -
	echo 'pip-audit>=2.10' | $(HASHES) --python-version 3.11 --upgrade --output-file requirements-audit.lock -

sbom: install  ## write what the image holds to build/kopf-dra.cdx.json, an SBOM in CycloneDX's form
	$(BIN)/python supply/sbom.py build/kopf-dra.cdx.json

audit: install  ## look up known vulnerabilities of what the image holds; "Error 75": the service was not reached
	@.ci/audit

release: install  ## make the files of a release in build/release: wheel, manifests, kubectl dra for krew
	$(BIN)/python supply/release.py build/release

ENGINE ?= docker

image:  ## build the container image with ENGINE (docker, podman), as kopf-dra:VERSION
	version=$$(sed -n 's/^VERSION = "\(.*\)"/\1/p' proto/dra_api/__init__.py); \
	$(ENGINE) build --build-arg "VERSION=$$version" --build-arg "REVISION=$$(git rev-parse HEAD)" \
	  --tag "ghcr.io/kopf-dra/kopf-dra:$$version" .

clean:  ## remove .venv and caches
	rm -rf .venv .venv-* build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
