"""The demo's story: three syncs of a shop, and what each one shows."""

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
    """The three syncs of the shop, and what each one shows."""

    def __init__(self, screen: Screen, project: Path, folder: Path) -> None:
        self.screen = screen
        self.project = project
        self.folder = folder
        spec = load_spec(project / "loader.yml")
        lake = spec.destination("lake").lake
        profile = load_profile(lake.profile, lake.target, project, profiles_dir="profiles")
        self.spark = session(replace(profile, conf=_short_lived(profile.conf)))
        self.spark.sparkContext.setLogLevel("OFF")
        self.pipeline = Pipeline(spec, self.spark)
        self.raw, self.analytics = lake.schema_, profile.schema
        self.shop = Shop(self.spark, spec.source("shop").spec["url"], folder)
        self.known: dict[str, SyncRecord] = {}

    def close(self) -> None:
        """Shuts down the shop and Spark, so that other processes can open the database."""
        self.shop.close()
        self.spark.stop()

    def tell(self) -> None:
        """Runs all steps, in order."""
        self.open_shop()
        self.first_sync()
        self.build(warnings={})
        changes = self.evening()
        self.second_sync(changes)
        self.build(warnings={"cursor_conflict": 1})
        self.show_versions()
        self.third_sync()

    def open_shop(self) -> None:
        """Shows the source, before anything is read."""
        self.screen.step("A shop: an embedded Derby database, read through JDBC")
        self.shop.create()
        self.screen.table(
            ("table", "rows", "share updated_at", "without it", "newest updated_at"),
            [(t, *self.shop.described(t), self._newest(t)) for t in TABLES],
        )
        self.screen.say(
            f"""Orders shipped in one go share their updated_at, and so do the {len(PAID)} that were
            paid at {PAYMENTS:%H:%M:%S}. Such ties are where incremental loads go wrong."""
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
            "each cursor is the highest updated_at that was read, to the microsecond",
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
                f"{table}: the {wanted:,} that changed were appended, as batch 2; {dropped:,} came "
                "again unchanged and were dropped as redelivered",
            )
        self.screen.say(
            f"""Why read at the cursor again, and not just above it? Because {before} was not over
            when the first sync read it:"""
        )
        batches = self._batches("orders", f"order_id in ({CORRECTED}, {ORDERS + 1}, {RESAVED})")
        self.screen.claim(
            batches[CORRECTED] == [1, 2] and batches[ORDERS + 1] == [2],
            f"order {CORRECTED}, corrected in that second, and order {ORDERS + 1}, which turned up "
            "late in it, were found; above the cursor alone, both would be lost",
        )
        self.screen.claim(
            batches[RESAVED] == [1],
            f"order {RESAVED}, re-sent as it was, was read again and dropped as redelivered",
        )
        self.screen.claim(
            self._batches("customers", "customer_id = 2")[2] == [1, 2],
            "customer 2, who has no updated_at at all, was found as well: rows without a cursor "
            "are read each time (null_cursor: include)",
        )

    def build(self, warnings: dict[str, int]) -> None:
        """Runs dbt, and checks its snapshots against the source.

        Args:
            warnings: the tests that must warn, and for how many rows.
        """
        self.screen.step("Build: from all versions to the newest one of each key")
        self.screen.command("dbt build --profiles-dir profiles")
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
        """Shows that raw keeps what the snapshot no longer has."""
        self.screen.say(
            f"""Raw keeps every version, the snapshot only the newest: the one with the highest
            cursor or, if cursors are equal, the one from the later batch. Order {CORRECTED}:"""
        )
        columns = ["status", "total", "updated_at", "_cq_batch"]
        rows: list[tuple[str, ...]] = []
        for schema in (self.raw, self.analytics):
            found = self.spark.table(f"{schema}.orders").where(f"order_id = {CORRECTED}")
            versions = found.select(*columns).orderBy("_cq_batch").collect()
            rows += [(f"{schema}.orders", *map(str, version)) for version in versions]
        self.screen.table(("", *columns), rows)
        self.screen.claim(len(rows) == 3, "two versions in raw, one row in the snapshot")
        self.screen.say(
            """The test cursor_conflict finds such versions, because updated_at alone does not say
            which is newer. It fails by default; this demo makes such versions on purpose, so it
            sets the test to warn (models/demo)."""
        )

    def third_sync(self) -> None:
        """Finds nothing new, so writes nothing."""
        self.screen.step("Third sync: nothing has changed")
        before = self._commits()
        records = self._sync()
        self._claim_read(records)
        self.screen.claim(
            all(r.rows_appended == 0 and r.batch is None for r in records.values()),
            "the rows at the cursor, and those without one, came again and were all dropped: no "
            "batch",
        )
        self.screen.claim(
            self._said(records) == ["nothing new"] * len(records),
            f"the ledger {self.raw}._cq_syncs says so: nothing new",
        )
        self.screen.claim(
            self._commits() == before,
            "the raw tables still have the same Iceberg snapshots: nothing was written",
        )

    def _sync(self) -> dict[str, SyncRecord]:
        """Syncs like `loader run`, and shows it; returns the records in the spec's order."""

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
        due = {table: self.shop.due(table, record.cursor_low) for table, record in records.items()}
        later = any(record.cursor_low for record in records.values())
        self.screen.claim(
            due == {table: record.rows_read for table, record in records.items()},
            "for each table, the number of rows read is what the database itself counts"
            + (" at or above the cursor, or without one" if later else ""),
        )

    def _compare(self) -> None:

        rows = []
        for table in TABLES:
            frame = self.shop.frame(table)
            source = sums(frame, frame.columns)
            snapshot = sums(self.spark.table(f"{self.analytics}.{table}"), frame.columns)
            raw = self.spark.table(f"{self.raw}.{table}").count()
            same = sum(source.columns[name] == snapshot.columns[name] for name in frame.columns)
            shown = f"{same} of {len(frame.columns)}"
            rows.append((table, raw, source, snapshot, shown))
        self.screen.table(
            (
                "table",
                "raw rows",
                "snapshot rows",
                "source rows",
                "snapshot sum",
                "source sum",
                "equal columns",
            ),
            [
                (
                    table,
                    raw,
                    snapshot.rows,
                    source.rows,
                    f"{snapshot.whole:x}",
                    f"{source.whole:x}",
                    same,
                )
                for table, raw, source, snapshot, same in rows
            ],
        )
        self.screen.claim(
            all(source == snapshot for _, _, source, snapshot, _ in rows),
            "each snapshot holds what its source holds: counts, the checksum of all rows, and the "
            "checksum of every column are equal",
        )
        total = self.shop.value("select sum(total) from orders")
        [(ours,)] = self.spark.sql(f"select sum(total) from {self.analytics}.orders").collect()
        self.screen.claim(
            str(ours) == total, f"sum(total) of orders is {ours} in both, each queried on its own"
        )

    def _batches(self, table: str, where: str) -> dict[int, list[int]]:
        """Returns the batches that hold versions of each row that `where` selects."""
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

    def _said(self, records: dict[str, SyncRecord]) -> list[str]:
        """Returns the ledger's status of each table in a run."""
        [run] = {record.run_id for record in records.values()}
        ledger = self.spark.table(f"{self.raw}._cq_syncs").where(f"run_id = '{run}'")
        return [row[0] for row in ledger.select("status").collect()]

    def _newest(self, table: str) -> str:

        text = self.shop.value(f"select max(updated_at) from {table}")
        return Cursor.parse(text, CursorType.TIMESTAMP).text


def _short_lived(conf: dict[str, str]) -> dict[str, str]:
    """Tunes the target for a JVM that lives a minute: tuning for long work costs it a quarter.

    The first compiler alone gets 48 MB for its code by default; Spark ends once they are full.
    """
    options = conf.get("spark.driver.extraJavaOptions", "")
    short = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    return {**conf, "spark.driver.extraJavaOptions": f"{options} {short}"}
