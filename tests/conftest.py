"""Fixtures shared by all tests: one Spark session, one lake and one server of each database.

Each is started on first use. With pytest-xdist, each process has its own.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import pytest

from loader.cli import slow_steps
from tests.crash.workers import Workers
from tests.services import Database, MariaDb, Postgres, Redis, Server, ServerMissing, memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]

# A cluster takes minutes to start and a browser is a large download, so these folders are only run
# explicitly, by `make test-cluster` and `make test-report`.
collect_ignore = ["cluster", "report"]

# Output that tests compare must not depend on how busy the machine is.
slow_steps.SECONDS = 1e9

# A deadline for each example would judge how busy the machine is.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

# Under `nohup` the suite ignores SIGHUP, and its child processes would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The machine, the session (UTC) and the databases use four different time zones, so a time that is
# read in the wrong zone makes a test fail. Set before anything starts a JVM.
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
memory.folder()  # also sets the variable by which the servers find it

SPARK_OPTIONS = (
    # The suite's JVMs live for minutes and read small tables, so the C2 compiler costs more than it
    # saves, especially on two cores. C1 alone gets a small code cache by default; once that is
    # full, nothing more is compiled.
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    # C1 compiles quickly, so it may start after half as many calls as by default.
    "-XX:Tier3InvocationThreshold=100",
    "-XX:Tier3MinInvocationThreshold=50",
    "-XX:Tier3CompileThreshold=1000",
    "-XX:Tier3BackEdgeThreshold=30000",
    # A virtual machine walks two page tables, which is slow for a large heap in pages of 4 KB.
    "-XX:+UseTransparentHugePages",
    "-XX:+UseSerialGC",
    "-Xms1g",
    "-Xmn512m",
    "-XX:MetaspaceSize=400m",
    # Generating code for a query over ten rows costs more than it saves, too.
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    # Hadoop runs `chmod` for each file that it creates: this is the cheapest way to start it.
    "-Djdk.lang.Process.launchMechanism=VFORK",
    # Replanning a query over ten rows halfway does not pay off, either.
    "-Dspark.sql.adaptive.enabled=false",
    # Nobody reads the plans of the suite's queries.
    "-Dspark.sql.ui.explainMode=simple",
)
"""JVM options of the suite. It uses the shipped profile, which sets none of these."""

os.environ["SPARK_SUBMIT_OPTS"] = " ".join(SPARK_OPTIONS)
os.environ["STRANDLINE_SHUFFLE_PARTITIONS"] = "1"
# What names and values of a source try to read: in the environment of the JVM, of dbt and of the
# loader (tests/codegen/test_hostile_names.py).
os.environ.setdefault("STRANDLINE_MARKER", uuid.uuid4().hex)
os.environ["DBT_SEND_ANONYMOUS_USAGE_STATS"] = "false"
for name in ("DBT_PROFILES_DIR", "DBT_TARGET", "STRANDLINE_TARGET"):
    os.environ.pop(name, None)

SHARED = {"warehouse", "postgres", "mariadb", "redis_server"}
"""Fixtures that start Spark or a server."""

SUBPROCESSES = (
    "tests/benchmarks/",
    "tests/demo/",
    "tests/setup/",
    "tests/connectors/cloudquery/test_bridge.py",
)
"""Files whose tests use no such fixture but start programs that take as long."""

HEAVY = (
    # reads every table of the lake, so it runs while there are few
    "tests/maintenance/test_command.py",
    "tests/maintenance/",
    "tests/sync/test_where.py",
    "tests/dbt/test_generic_tests.py",
    "tests/dbt/test_verdicts.py",
    "tests/reconcile/test_rotation.py",
    "tests/sync/test_masked_files.py",
    "tests/sync/test_masks.py",
    "tests/sync/test_file",
    "tests/dbt/test_models_rebuilt.py",
    "tests/crash/",
    "tests/receipts/",
    "tests/cdc/test_crash.py",
    "tests/cdc/test_masked_log.py",
    "tests/connectors/cloudquery/test_cloudquery.py",
    "tests/schedulers/test_airflow.py",
    "tests/dbt/test_verdicts_property.py",
    "tests/sync/test_sweep.py",
    "tests/cdc/test_chunked_first_loads.py",
    "tests/reconcile/test_safeguards.py",
    "tests/dbt/test_modes.py",
    "tests/dbt/test_latest_verdicts.py",
    "tests/demo/",
    "tests/benchmarks/test_run.py",
    "tests/dbt/test_model_queries.py",
    "tests/dbt/test_batches_complete.py",
    "tests/setup/test_guide_commands.py",
    "tests/codegen/",
    "tests/sync/test_remedies.py",
    "tests/cdc/",
    "tests/reconcile/",
    "tests/dbt/",
    "tests/state/test_backends.py",
)
"""Slow files, started first in this order, so that none is still running when the rest is done."""

S = TypeVar("S", bound="Server | Redis")
_VERSIONS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates the lake's folder and points `profiles/profiles.yml` to it."""
    folder = Path(tempfile.mkdtemp(prefix="warehouse-", dir=memory.folder()))
    os.environ["STRANDLINE_WAREHOUSE"] = str(folder)
    os.environ["SPARK_LOCAL_DIRS"] = str(memory.folder() / "spark")
    os.environ["STRANDLINE_LOCKS"] = str(tmp_path_factory.mktemp("locks") / "own")
    return folder


def _enable_ansi() -> None:
    """Turns ANSI mode on, which the loader and dbt-spark turn off: the SQL must work in both."""
    from dbt.adapters.spark.connections import SparkCredentials

    from loader.spark import session

    session._REQUIRED["spark.sql.ansi.enabled"] = "true"
    finish = SparkCredentials.__post_init__

    def finish_with_ansi(credentials: SparkCredentials) -> None:
        finish(credentials)
        credentials.server_side_parameters["spark.sql.ansi.enabled"] = "true"

    SparkCredentials.__post_init__ = finish_with_ansi


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    """Starts the suite's only session, from the profile's target `embedded`. dbt uses it, too."""
    from loader.spark.profile import load_profile
    from loader.spark.session import session

    if os.environ.get("ANSI") == "true":
        _enable_ansi()
    profile = load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    session = session(profile)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    """The PostgreSQL server; `postgres.database()` creates a database."""
    with _running(Postgres, pytestconfig) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(pytestconfig: pytest.Config) -> Iterator[MariaDb]:
    """The MariaDB server; `mariadb.database()` creates a database."""
    with _running(MariaDb, pytestconfig) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[Redis]:
    """The Redis server; `redis_server.name()` returns a name that no test has used."""
    with _running(Redis, pytestconfig) as server:
        yield server


@pytest.fixture
def postgres_database(postgres: Postgres) -> Iterator[Database]:
    """A PostgreSQL database for one test."""
    with postgres.database() as database:
        yield database


@pytest.fixture
def mariadb_database(mariadb: MariaDb) -> Iterator[Database]:
    """A MariaDB database for one test."""
    with mariadb.database() as database:
        yield database


@pytest.fixture(scope="session")
def worker_pool(warehouse: Path) -> Iterator[Workers]:
    """Loader processes on the same warehouse, which tests may kill."""
    pool = Workers()
    yield pool
    pool.close()


@contextmanager
def _running(kind: type[S], config: pytest.Config) -> Iterator[S]:
    try:
        server = kind()
    except ServerMissing as error:
        pytest.fail(str(error), pytrace=False)
    config.stash.setdefault(_VERSIONS, []).append(server.version)
    try:
        yield server
    finally:
        server.remove()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that need neither Spark nor a server, and are not slow, as `fast`.

    Sorts the tests so that slow files start first.
    """
    for item in items:
        needed = SHARED & set(getattr(item, "fixturenames", ()))
        is_slow = item.nodeid.startswith(SUBPROCESSES) or item.get_closest_marker("slow")
        if not needed and not is_slow:
            item.add_marker("fast")
    items.sort(key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    """Returns the position of a test's file in `HEAVY`; all other files share the last one."""
    return next((n for n, name in enumerate(HEAVY) if nodeid.startswith(name)), len(HEAVY))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keeps the garbage collector from traversing dbt, PySpark and all tests repeatedly."""
    gc.collect()
    gc.freeze()
    # Each collection traverses dbt's parsed project: by default an eighth of Python's time.
    gc.set_threshold(50_000, 20, 50)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the server versions of an xdist process to the main process."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = session.config.stash.get(_VERSIONS, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collects the server versions of an xdist process that has ended."""
    found = getattr(node, "workeroutput", {}).get("servers", [])
    node.config.stash.setdefault(_VERSIONS, []).extend(found)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints which database servers the tests ran against."""
    for version in sorted(set(config.stash.get(_VERSIONS, []))):
        terminalreporter.write_line(f"ran against {version}")
