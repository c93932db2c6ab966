"""`loader run --every`: one process runs repeatedly while sources, specs and builds fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from loader.cli.console import Output
from loader.cli.daemon import Daemon
from loader.cli.dbt_build import Build
from loader.cli.run_once import RunRequest
from loader.cli.settings import Settings, open_pipeline
from loader.errors import LoaderError
from tests.services import Database, Postgres
from tests.sync.project import ROOT, Project

Action = Callable[[], Any]


class Script(Output):
    """Collects the output of each round, and runs the next action after it.

    Attributes:
        rounds: the facts of each round, with its errors and events.
        overruns: the facts of each round that took longer than the interval.
    """

    def __init__(self, actions: list[Action], most: int = 40, every: float = 0.05) -> None:
        super().__init__("json")
        self.actions = actions
        self.most, self.every = most, every
        self.rounds: list[dict[str, Any]] = []
        self.overruns: list[dict[str, Any]] = []
        self.output_text: list[str] = []
        self.stop = threading.Event()

    def event(self, kind: str, text: str, /, **facts: Any) -> None:
        about = facts.get("source") or facts.get("table")
        self.output_text.append(f"{kind} {about}" if about else kind)
        if kind == "overrun":
            self.overruns.append(facts)
        if kind != "round":
            return
        self.rounds.append({**facts, "output_text": self.output_text[:-1]})
        self.output_text = []
        # An action that returns False is called again after the next round.
        if self.actions and self.actions[0]() is not False:
            self.actions.pop(0)
        if not self.actions or len(self.rounds) >= self.most:
            self.stop.set()

    def error(self, error: LoaderError) -> None:
        self.output_text.append(f"error: {error}")

    def warning(self, text: str, **facts: Any) -> None:
        self.output_text.append(f"warning: {text}")

    def table(self, kind: str, columns: Any, rows: Any, title: str = "") -> None:
        self.output_text += [f"{kind}: {dict(zip(columns, row, strict=True))}" for row in rows]


def run_daemon(project: Project, script: Script, build: Build | None = None) -> int:
    """Runs the daemon until the script's actions are done; returns the exit code."""
    settings = Settings(project.folder / "loader.yml", output=script)
    with open_pipeline(settings) as pipeline:
        wanted = RunRequest(build=build)
        loop = Daemon(settings, pipeline, wanted, every=script.every, stopped=script.stop)
        code = loop.run()
    assert script.actions == [], f"not all came about: {script.rounds}"
    return code


def _create_orders(database: Database) -> None:
    database.execute(
        "create table orders (id int primary key, updated_at timestamptz not null)",
        "insert into orders values (1, '2025-01-01'), (2, '2025-01-02')",
    )


def test_sources_that_become_unreachable_and_recover(
    project: Project, postgres: Postgres, postgres_database: Database
) -> None:
    """Unreachable sources are retried less often, other sources do not wait, no row is missed.

    The spec names the tables of `shop`. It selects all tables of `wild`, which cannot be listed.
    """
    _create_orders(postgres_database)
    with postgres.database() as wild, postgres.database() as other:
        for database, table in ((wild, "items"), (other, "events")):
            database.execute(
                f"create table {table} (id int primary key)", f"insert into {table} values (1)"
            )
        options = {"orders": {"cursor_field": "updated_at"}}
        project.jdbc(postgres_database, ["orders"], table_options=options)
        for database, source, tables, table in (
            (wild, "wild", ["*"], "items"),
            (other, "apart", ["events"], "events"),
        ):
            project.jdbc(database, tables, source, table_options={table: {"cursor_field": "id"}})

        def down() -> None:
            for database in (postgres_database, wild):
                other.execute(
                    f"alter database {database.name} allow_connections false",
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    f"where datname = '{database.name}'",
                )

        def rested() -> bool:
            """Checks that both sources paused for two rounds; gives the other source a new row."""
            row = len(script.rounds) + 100
            other.execute(f"insert into events values ({row})")
            return all(done["resting"] == ["shop", "wild"] for done in script.rounds[-2:])

        def up() -> None:
            for database in (postgres_database, wild):
                other.execute(f"alter database {database.name} allow_connections true")
            postgres_database.execute("insert into orders values (3, '2025-01-03')")
            wild.execute("insert into items values (2)")

        def back() -> bool:
            return {"back shop", "back wild"} <= {
                output_text for done in rounds for output_text in done["output_text"]
            }

        # If rounds took longer than the interval, a pause of two rounds would need many failures.
        script = Script([down, rested, up, back, lambda: None], every=1)
        rounds = script.rounds
        assert run_daemon(project, script) == 0, rounds
        assert (rounds[0]["tables"], rounds[0]["appended"]) == (3, 4)
        failed = sorted({name for done in rounds for name in done["failed"]})
        assert [name[:11] for name in failed] == ["shop.orders", "source wild"]
        output_text = [text for done in rounds for text in done["output_text"]]
        errors = [text for text in output_text if text.startswith("error")]
        assert len(errors) == 2, "each is reported once, not in each round"
        for error in errors:
            assert "not currently accepting connections" in error
        resting = [done for done in rounds if done["resting"]]
        assert any(done["appended"] for done in resting), "the other source went on"
        for source in ("shop", "wild"):
            [came] = [done for done in rounds if f"back {source}" in done["output_text"]]
            assert came["appended"] >= 1
        assert [text for text in output_text if text.startswith("recovered")] == [
            "recovered shop.orders"
        ]
        assert project.rows("select id from raw.orders order by id") == [(1,), (2,), (3,)]
        assert project.rows("select id from raw.items order by id") == [(1,), (2,)]


def test_a_changed_spec_is_reloaded(project: Project, postgres_database: Database) -> None:
    """An invalid spec is reported once, and the daemon continues with the previous one."""
    _create_orders(postgres_database)
    postgres_database.execute("create table items (id int primary key)")
    postgres_database.execute("insert into items values (1)")
    spec = project.folder / "loader.yml"
    options = {"orders": {"cursor_field": "updated_at"}, "items": {"cursor_field": "id"}}
    project.jdbc(postgres_database, ["orders"], table_options={"orders": options["orders"]})
    right = spec.read_text()

    def more() -> None:
        project.jdbc(postgres_database, ["orders", "items"], table_options=options)

    script = Script(
        [
            lambda: spec.write_text(right.replace("kind: source", "kind: sauce")) and None,
            lambda: None,
            lambda: postgres_database.execute("insert into orders values (3, '2025-01-03')"),
            more,
            lambda: None,
        ]
    )
    assert run_daemon(project, script) == 0
    assert [done["appended"] for done in script.rounds] == [2, 0, 0, 1, 1]
    errors = [[t for t in done["output_text"] if t.startswith("error")] for done in script.rounds]
    assert [len(output_text) for output_text in errors] == [0, 1, 0, 0, 0]
    assert "unknown kind 'sauce'" in errors[1][0]
    assert ["spec" in done["output_text"] for done in script.rounds] == [False] * 4 + [True]
    assert project.rows("select count(*) from raw.items") == [(1,)]


def test_a_build_runs_only_after_new_rows(project: Project, postgres_database: Database) -> None:
    """The build uses the same session, so the model reads what the sync has just committed."""
    _create_orders(postgres_database)
    project.jdbc(
        postgres_database, ["orders"], table_options={"orders": {"cursor_field": "updated_at"}}
    )
    model = f"rounds_{project.schema}"
    write_dbt_project(project, {model: f"select count(*) as n from lake.{project.schema}.orders"})
    script = Script(
        [
            lambda: None,
            lambda: postgres_database.execute("insert into orders values (3, '2025-01-03')"),
            lambda: None,
            lambda: None,
        ]
    )
    assert run_daemon(project, script, Build(project.folder)) == 0
    assert [done["appended"] for done in script.rounds] == [2, 0, 1, 0]
    # Output that follows a round's event is collected with the next round.
    built = [[t for t in done["output_text"] if t.startswith("build")] for done in script.rounds]
    assert [len(output_text) for output_text in built] == [0, 1, 0, 1]
    assert "'succeeded': 1, 'warned': 0, 'failed': 0" in built[1][0]
    # Each round takes longer than the interval of 0.05 s.
    [first, *_] = [facts for facts in script.overruns if facts["build_seconds"]]
    assert first["round"] == 1
    assert first["seconds"] >= first["load_seconds"] + first["build_seconds"] - 0.1
    assert "shop.orders" in {each["table"] for each in first["longest_tables"]}
    assert {each["node"] for each in first["longest_nodes"]} == {f"model.rounds.{model}"}
    assert project.spark.table(f"analytics.{model}").collect()[0]["n"] == 3


def write_dbt_project(project: Project, models: dict[str, str]) -> None:
    """Creates a dbt project in the folder of the spec, with the same profile."""
    (project.folder / "models").mkdir(exist_ok=True)
    (project.folder / "dbt_project.yml").write_text(
        "name: rounds\nversion: '1.0'\nprofile: strandline\n"
        "flags: {send_anonymous_usage_stats: false}\n"
        "models: {+materialized: table, +file_format: iceberg}\n"
    )
    for name, sql in models.items():
        (project.folder / "models" / f"{name}.sql").write_text(sql)


def test_one_run_and_its_build(project: Project, postgres_database: Database) -> None:
    """The exit code covers both, dbt gets its arguments, and both use the same Spark session."""
    _create_orders(postgres_database)
    table = {"orders": {"cursor_field": "updated_at"}}
    project.jdbc(postgres_database, ["orders"], table_options=table)
    none = project.loader("run", "--build")
    assert (none.code, len(none.errors)) == (2, 1), none.text
    assert f"there is no dbt_project.yml in {project.folder}" in none.errors[0]

    good, bad = f"good_{project.schema}", f"bad_{project.schema}"
    write_dbt_project(project, {good: "select 1 as id", bad: "select 1 as id from {{ nowhere }}"})
    both = project.loader("run", "--build")
    assert both.code == 1
    assert both.table("shop.orders")["appended"] == 2
    [build] = [event for event in both.events if event.get("event") == "build"]
    assert (build["succeeded"], build["failed"]) == (1, 1)
    one = project.loader("run", "--build", "--", "--select", good)
    assert one.code == 0, one.text
    assert one.table("shop.orders")["status"] == "nothing new"

    typo = project.loader("run", "--build", "--", "--select", "nosuch")
    assert (typo.code, typo.errors) == (
        1,
        [
            "dbt build: nothing in the project matches --select nosuch. Correct the arguments "
            "after `--`; `dbt ls` lists all nodes"
        ],
    )

    project.jdbc(postgres_database, ["orders", "gone"], table_options=table)
    failed = project.loader("run", "--build", "--", "--select", good)
    assert (failed.code, len(failed.errors)) == (1, 1), "the table that is gone, though dbt is well"
    assert [e["failed"] for e in failed.events if e.get("event") == "build"] == [0]
    wrong = project.loader("run", "--build", "--", "--banana")
    assert (wrong.code, len(wrong.errors)) == (2, 2)
    assert "No such option '--banana'" in wrong.errors[1]
    other = project.loader("run", "--build", "--", "--target", "cluster")
    assert (other.code, other.errors) == (
        2,
        [
            "--build, --target: the target cluster differs from the loader's, embedded. Sync and "
            "build use the same Spark session: set it in the destination of loader.yml, or run "
            "`dbt build` by itself"
        ],
    )
    assert project.rows("select count(*) from raw.orders") == [(2,)]
    assert (ROOT / "profiles" / "profiles.yml").exists(), "dbt went elsewhere, and came back"


def test_more_tables_do_not_need_more_connections(
    project: Project, postgres_database: Database
) -> None:
    """Opening a connection costs the database more than most queries.

    Spark opens one per table to read its columns, and up to four threads that describe tables have
    one each.
    """
    names = [f"t{number}" for number in range(8)]
    for name in names:
        postgres_database.execute(
            f"create table {name} (id int primary key, at timestamptz default now())",
            f"insert into {name} (id) values (1)",
        )

    def sessions() -> int:
        [(count,)] = postgres_database.query(
            "select sessions from pg_stat_database where datname = current_database()"
        )
        return int(count)

    opened = {}
    for wanted in (names[:2], names):
        options = {name: {"cursor_field": "at"} for name in wanted}
        project.jdbc(postgres_database, wanted, table_options=options, name="shop")
        project.run("--concurrency", "1")
        before = sessions()
        project.run("--concurrency", "1")
        opened[len(wanted)] = sessions() - before
    assert opened[8] - opened[2] <= 6 + 4 - 2, opened
