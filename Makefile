# `make` alone lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CONSTRAINTS := requirements/constraints.txt
# What a broker is built with and runs on is pinned by the hashes of its files, which are those of the
# public package index. An index that has files of its own needs HASHES=no: versions alone then.
HASHES ?= yes
PINNED := $(if $(filter no,$(HASHES)),-c $(CONSTRAINTS),--require-hashes -r requirements/run.txt)
# Pinned in pyproject.toml's build-system too; installed here so that builds need no isolation.
BUILD_DEPS := setuptools 'mypy[mypyc]' librt mypy-extensions crc32c
GENERATORS = $(wildcard tools/generate_*.py)
LISTEN ?= 127.0.0.1:5672
HTTP ?= 127.0.0.1:15672
DATA ?= ./data
UP_DATA ?= ./data/cluster
FUZZ_SECONDS ?= 600
# As root, tests install the programs of others that they need, and say which and why before. With
# `make test SYSTEM_PACKAGES=no` they do without: tests that need what is missing are skipped.
SYSTEM_PACKAGES ?= yes
export SYSTEM_PACKAGES
# Tests start hundreds of brokers, and without bytecode each of them would compile its sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run lone test check unit interop soak bench pipeline build docs wheel check-wheel deb check-deb release image clean \
	constraints test-deps

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: build ## set up, compile, and start three brokers on 127.0.0.1:5672 to 5674; UP="--secondaries 2" passes options
	@exec $(BIN)/rhizome up --data $(UP_DATA) $(UP)

lone: build ## set up, compile, and start one broker on 127.0.0.1:5672 with its store in ./data
	@echo "AMQP 0-9-1:  amqp://guest:guest@$(LISTEN)/"
	@echo "HTTP:        http://$(HTTP)/"
	@echo "store:       $(DATA)        stop with Ctrl-C"
	@exec $(BIN)/rhizome serve --listen $(LISTEN) --http $(HTTP) --data $(DATA)

test: $(VENV)/test.stamp ## set up everything and pass all tests, compiled and interpreted; SYSTEM_PACKAGES=no: no apt-get
	@tools/system_packages.sh
	$(BIN)/python tools/run_suites.py

check: $(VENV)/test.stamp ## lint, types, import directions, generated files, links of the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .cache/import_linter
	$(BIN)/python tools/pin_requirements.py --check
	@for g in $(GENERATORS); do echo "$$g --check"; $(BIN)/python $$g --check; done
	$(BIN)/mkdocs build --quiet --strict

docs: $(VENV)/test.stamp ## build the documents as a site in build/site; fails on a broken link
	$(BIN)/mkdocs build --quiet --strict

unit: $(VENV)/test.stamp build ## unit tests on the compiled build
	RHIZOME_EXPECT=$$(cat build/form) $(BIN)/python -m pytest -m "not soak" tests/unit

interop: test-deps ## tests with other people's clients
	RHIZOME_EXPECT=$$(cat build/form) $(BIN)/python -m pytest -m "not soak" tests/interop

soak: test-deps ## the long suites, in parts of an hour at most; PART="power-cuts" runs one, PART=--list names them
	$(if $(filter --list,$(PART)),,RHIZOME_PURE=1 $(PIP) install -c $(CONSTRAINTS) --no-build-isolation -e '.[fuzz]' || true)
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python tools/run_soak.py $(PART)

pipeline: build $(VENV)/test.stamp ## show the data pipeline: a cluster, traffic, archive, report, audit, replay
	@tools/system_packages.sh java
	$(BIN)/python tools/pipeline_demo.py

bench: build ## measure against RabbitMQ; BENCH="--quick --only NAME" passes options
	$(BIN)/python bench/run.py $(BENCH)

build: $(VENV)/run.stamp ## compile the hot modules in place, if they changed
	@$(BIN)/python tools/build_hot.py

wheel: $(VENV)/release.stamp ## build the source archive and, from it, a compiled wheel for this interpreter, in ./dist
	rm -rf dist
	$(BIN)/python tools/build_wheel.py dist

check-wheel: $(VENV)/test.stamp ## install the wheel in ./dist where no compiler is, start a cluster, say hello, run Spark
	@ls dist/*.whl >/dev/null 2>&1 || $(MAKE) --no-print-directory wheel
	@tools/system_packages.sh java
	RHIZOME_TEST_WHEEL=$$(ls $(CURDIR)/dist/*.whl | head -1) \
		$(BIN)/python -m pytest -s -m wheel tests/process/operations/test_install.py

deb: $(VENV)/release.stamp ## build the Debian package from the wheel in ./dist, in ./dist
	@ls dist/*.whl >/dev/null 2>&1 || $(MAKE) --no-print-directory wheel
	HASHES=$(HASHES) $(BIN)/python tools/build_deb.py $$(ls dist/*.whl | head -1) dist

check-deb: $(VENV)/test.stamp ## install the Debian package in ./dist into a Debian made by debootstrap; as root
	@ls dist/*.deb >/dev/null 2>&1 || $(MAKE) --no-print-directory deb
	RHIZOME_TEST_DEB=$$(ls $(CURDIR)/dist/*.deb | head -1) \
		$(BIN)/python -m pytest -rs -m wheel tests/process/operations/test_deb.py

release: $(VENV)/release.stamp ## check version, changelog and tag; then archive, wheel, list of parts (SBOM) and checksums; RELEASE=--draft makes them all the same
	$(BIN)/python tools/release.py $(RELEASE)

image: ## build the container image; BASE=NAME@sha256:... is the base, by its digest
	packaging/build_image.sh

clean: ## remove everything that was built; keeps ./data
	rm -rf $(VENV) .cache build dist bench/bin src/*.egg-info
	find . -name __pycache__ -prune -not -path './.git/*' -exec rm -rf {} +
	find src -name '*.so' -delete
	find tests -name node_modules -prune -exec rm -rf {} +

constraints: ## renew the versions and hashes in requirements/ from what pyproject.toml allows
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip --quiet install $(BUILD_DEPS) '.[test,release,spark,connect,delta,iceberg]'
	{ grep '^#' $(CONSTRAINTS); build/constraints/bin/python -m pip freeze --all \
		| grep -vE '^(pip|rhizomemq)[ =]'; } > build/constraints.txt
	mv build/constraints.txt $(CONSTRAINTS)
	build/constraints/bin/python -m pip --quiet install 'pip-tools>=7,<8'
	build/constraints/bin/python tools/pin_requirements.py

test-deps: $(VENV)/test.stamp build
	@tools/system_packages.sh

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The editable install gives the command and the dependencies; tools/build_hot.py does the compiling.
$(VENV)/run.stamp: pyproject.toml $(CONSTRAINTS) requirements/run.txt | $(VENV)/bin/python
	$(PIP) install $(PINNED) $(if $(filter no,$(HASHES)),$(BUILD_DEPS))
	RHIZOME_PURE=1 $(PIP) install -c $(CONSTRAINTS) --no-build-isolation \
		$(if $(filter no,$(HASHES)),,--no-deps) -e .
	@touch $@

# Wheels are checked with tools that nothing else needs.
$(VENV)/release.stamp: $(VENV)/run.stamp
	RHIZOME_PURE=1 $(PIP) install -c $(CONSTRAINTS) --no-build-isolation -e '.[release]'
	@touch $@

# What tests need is fetched and unpacked by one core: the hot modules, which use none of it, are
# compiled meanwhile.
$(VENV)/test.stamp: $(VENV)/run.stamp
	@$(BIN)/python tools/build_hot.py & built=$$!; \
	RHIZOME_PURE=1 $(PIP) install -c $(CONSTRAINTS) --no-build-isolation -e '.[test,spark,connect,delta,iceberg]'; \
	wait $$built
	@touch $@
