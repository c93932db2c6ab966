"""The steps of the demo: three syncs of a shop, with checks after each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from building import build
from comparison import sums
from screen import NotAsClaimed, Screen
from shop import CORRECTED, ORDERS, PAID, PAYMENTS, RESAVED, TABLES, Change, Shop

from loader.lake.ledger import SyncRecord
from loader.rows.cursor import Cursor, CursorType
from loader.spark.profile import load_profile
from loader.spark.session import session
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables


class Story:
    """Three syncs of the shop, with checks after each."""

    def __init__(self, screen: Screen, project: Path, folder: Path) -> None:
        self.screen = screen
        self.project = project
        self.folder = folder
        spec = load_spec(project / "loader.yml")
        lake = spec.destination("lake").lake
        profile = load_profile(lake.profile, lake.target, project, profiles_dir="profiles")
        self.spark = session(replace(profile, conf=_tune_jvm(profile.conf)))
        self.spark.sparkContext.setLogLevel("OFF")
        self.pipeline = Pipeline(spec, self.spark)
        self.raw, self.analytics = lake.schema_, profile.schema
        self.shop = Shop(self.spark, spec.source("shop").spec["url"], folder)
        self.known: dict[str, SyncRecord] = {}

    def close(self) -> None:
        """Shuts down the shop and Spark, so that other processes can open the database."""
        self.shop.close()
        self.spark.stop()

    def run(self) -> None:
        """Runs all steps, in order."""
        self.open_shop()
        self.first_sync()
        self.build(warnings={})
        changes = self.evening()
        self.second_sync(changes)
        self.build(warnings={"no_cursor_ties": 1})
        self.show_versions()
        self.third_sync()

    def open_shop(self) -> None:
        """Creates the source, and shows its tables."""
        self.screen.step("A shop: an embedded Derby database, read through JDBC")
        self.shop.create()
        self.screen.table(
            ("table", "rows", "share updated_at", "without it", "newest updated_at"),
            [(t, *self.shop.count_ties(t), self._newest(t)) for t in TABLES],
        )
        self.screen.say(
            f"""Orders of one shipment have the same updated_at, as have the {len(PAID)} that were
            paid at {PAYMENTS:%H:%M:%S}. Incremental loads often lose rows with such equal
            cursors."""
        )

    def first_sync(self) -> None:
        """Reads everything, because there is no cursor yet."""
        self.screen.step("First sync: no cursor yet, so everything is read")
        records = self._sync()
        self._claim_read(records)
        self.screen.claim(
            all(r.rows_appended == r.rows_read and r.batch == 1 for r in records.values()),
            "every row was appended, as batch 1 of its table",
        )
        self.screen.claim(
            all(r.cursor_high == self._newest(t) for t, r in records.items()),
            "each cursor is the highest updated_at that was read, with microseconds",
        )

    def evening(self) -> list[Change]:
        """Changes the source."""
        self.screen.step("An evening passes at the shop")
        changes = self.shop.change()
        for change in changes:
            self.screen.item("-", change.what)
        return changes

    def second_sync(self, changes: list[Change]) -> None:
        """Appends only what changed, the boundary included."""
        before = self.known["orders"].cursor_high
        self.screen.step("Second sync: it reads the rows at or above the cursor")
        records = self._sync()
        self._claim_read(records)
        for table, record in records.items():
            wanted = sum(change.rows for change in changes if change.table == table)
            dropped = record.rows_redelivered or 0
            self.screen.claim(
                (record.rows_appended, record.batch) == (wanted, 2)
                and record.rows_read == wanted + dropped,
                f"{table}: {wanted:,} changed rows were appended, as batch 2; {dropped:,} "
                "unchanged rows were read again and dropped as redelivered",
            )
        self.screen.say(
            f"""Why read rows at the cursor again, and not only above it? Because more rows with
            {before} were written after the first sync:"""
        )
        batches = self._batches("orders", f"order_id in ({CORRECTED}, {ORDERS + 1}, {RESAVED})")
        self.screen.claim(
            batches[CORRECTED] == [1, 2] and batches[ORDERS + 1] == [2],
            f"order {CORRECTED}, corrected in that second, and order {ORDERS + 1}, inserted late "
            "in that second, were found; reading only above the cursor would lose both",
        )
        self.screen.claim(
            batches[RESAVED] == [1],
            f"order {RESAVED}, saved again without a change, was read and dropped as redelivered",
        )
        self.screen.claim(
            self._batches("customers", "customer_id = 2")[2] == [1, 2],
            "customer 2, who has no updated_at, was found as well: rows without a cursor "
            "are read each time (null_cursor: include)",
        )

    def build(self, warnings: dict[str, int]) -> None:
        """Runs dbt, and compares its latest tables with the source.

        Args:
            warnings: for each test that must warn, the number of rows.
        """
        self.screen.step("Build: the newest version of each key")
        self.screen.command("dbt build --project-dir demo/dbt --profiles-dir profiles")
        built = build(self.project, self.folder)
        for wrong in built.wrong:
            self.screen.failed(wrong)
        self.screen.claim(
            not built.wrong and built.models > 0 and built.passed > 0 and built.warned == warnings,
            f"{built.models} models built, {built.passed} tests passed, "
            + (
                ", ".join(f"{t} warned about {n} row" for t, n in built.warned.items())
                or "none warned"
            ),
        )
        self._compare()

    def show_versions(self) -> None:
        """Shows that raw keeps versions that the latest table no longer has."""
        self.screen.say(
            f"""Raw keeps every version, the latest table only the newest: the one with the highest
            cursor or, if cursors are equal, the version of the later batch. Order {CORRECTED}:"""
        )
        columns = ["status", "total", "updated_at", "_cq_batch"]
        rows: list[tuple[str, ...]] = []
        for schema in (self.raw, self.analytics):
            found = self.spark.table(f"{schema}.orders").where(f"order_id = {CORRECTED}")
            versions = found.select(*columns).orderBy("_cq_batch").collect()
            rows += [(f"{schema}.orders", *map(str, version)) for version in versions]
        self.screen.table(("", *columns), rows)
        self.screen.claim(len(rows) == 3, "two versions in raw, one row in the latest table")
        self.screen.say(
            """The test no_cursor_ties finds such versions, because updated_at alone does not show
            which version is newer. It fails by default; this demo creates such versions on
            purpose, so it sets the test to warn (demo/dbt/models/models.yml)."""
        )

    def third_sync(self) -> None:
        """Syncs without changes in the source, which writes nothing."""
        self.screen.step("Third sync: nothing has changed")
        before = self._commits()
        records = self._sync()
        self._claim_read(records)
        self.screen.claim(
            all(r.rows_appended == 0 and r.batch is None for r in records.values()),
            "the rows at the cursor and those without a cursor were read again and all dropped: "
            "there is no new batch",
        )
        self.screen.claim(
            self._read_ledger(records) == ["nothing new"] * len(records),
            f"the ledger {self.raw}._cq_syncs records: nothing new",
        )
        self.screen.claim(
            self._commits() == before,
            "the raw tables still have the same Iceberg snapshots: nothing was written",
        )

    def _sync(self) -> dict[str, SyncRecord]:
        """Syncs like `loader run`, and prints the result; returns the ledger records."""

        self.screen.command("loader run")
        done: dict[str, SyncRecord] = {}
        for outcome in run_tables(self.pipeline, Watch()):
            if outcome.error is not None or outcome.record is None:
                raise outcome.error or NotAsClaimed(f"{outcome.table} has no record")
            done[outcome.record.table_name] = outcome.record
        records = {table: done[table] for table in TABLES}
        self.screen.table(
            ("table", "read", "appended", "dropped", "cursor before", "cursor after"),
            [
                (
                    table,
                    record.rows_read,
                    record.rows_appended,
                    record.rows_redelivered,
                    self.known[table].cursor_high if table in self.known else None,
                    record.cursor_high,
                )
                for table, record in records.items()
            ],
        )
        self.known = records
        return records

    def _claim_read(self, records: dict[str, SyncRecord]) -> None:
        due = {
            table: self.shop.count_due(table, record.cursor_low)
            for table, record in records.items()
        }
        later = any(record.cursor_low for record in records.values())
        self.screen.claim(
            due == {table: record.rows_read for table, record in records.items()},
            "for each table, the number of rows read equals a count in the database"
            + (" of rows at or above the cursor, or without a cursor" if later else ""),
        )

    def _compare(self) -> None:

        rows = []
        for table in TABLES:
            frame = self.shop.frame(table)
            source = sums(frame, frame.columns)
            latest = sums(self.spark.table(f"{self.analytics}.{table}"), frame.columns)
            raw = self.spark.table(f"{self.raw}.{table}").count()
            same = sum(source.columns[name] == latest.columns[name] for name in frame.columns)
            shown = f"{same} of {len(frame.columns)}"
            rows.append((table, raw, source, latest, shown))
        self.screen.table(
            (
                "table",
                "raw rows",
                "latest rows",
                "source rows",
                "latest sum",
                "source sum",
                "equal columns",
            ),
            [
                (
                    table,
                    raw,
                    latest.rows,
                    source.rows,
                    f"{latest.total:x}",
                    f"{source.total:x}",
                    same,
                )
                for table, raw, source, latest, same in rows
            ],
        )
        self.screen.claim(
            all(source == latest for _, _, source, latest, _ in rows),
            "each latest table equals its source: counts, the checksum of all rows, and the "
            "checksum of every column are the same",
        )
        total = self.shop.value("select sum(total) from orders")
        [(ours,)] = self.spark.sql(f"select sum(total) from {self.analytics}.orders").collect()
        self.screen.claim(str(ours) == total, f"sum(total) of orders is {ours} in a query of each")

    def _batches(self, table: str, where: str) -> dict[int, list[int]]:
        """Returns the batches with versions of each row that `where` selects, by key."""
        key = f"{table.removesuffix('s')}_id"
        frame = self.spark.table(f"{self.raw}.{table}").where(where)
        found: dict[int, list[int]] = {}
        for row in frame.select(key, "_cq_batch").orderBy("_cq_batch").collect():
            found.setdefault(row[0], []).append(row[1])
        return found

    def _commits(self) -> dict[str, list[int]]:
        """Returns the Iceberg snapshots of each raw table."""
        ids = "select snapshot_id from {}.{}.snapshots order by committed_at"
        return {
            table: [row[0] for row in self.spark.sql(ids.format(self.raw, table)).collect()]
            for table in TABLES
        }

    def _read_ledger(self, records: dict[str, SyncRecord]) -> list[str]:
        """Returns the ledger's status of each table in a run."""
        [run] = {record.run_id for record in records.values()}
        ledger = self.spark.table(f"{self.raw}._cq_syncs").where(f"run_id = '{run}'")
        return [row[0] for row in ledger.select("status").collect()]

    def _newest(self, table: str) -> str:

        text = self.shop.value(f"select max(updated_at) from {table}")
        return Cursor.parse(text, CursorType.TIMESTAMP).text


def _tune_jvm(conf: dict[str, str]) -> dict[str, str]:
    """Adds JVM options for a process of one minute, which save a quarter of its time.

    C1 alone has a code cache of 48 MB by default, and Spark fails when it is full.
    """
    options = conf.get("spark.driver.extraJavaOptions", "")
    short = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    return {**conf, "spark.driver.extraJavaOptions": f"{options} {short}"}
