"""What proofs cost after a batch: beside the merge, and after many batches beside after few.

    python benchmarks/proofs.py [--keys 4000000] [--builds 200] [--early 20] [--window 5] [--whole]

A raw table of eight columns; then one batch after another with new versions of a hundredth of the
keys, each followed by a build of the snapshot and by all tests that `loader codegen` writes for
such a table, in one process with two threads. Seconds are dbt's own, by node: medians of a window
of builds up to `--early` and up to `--builds`. `together` is the time on the clock from the first
test to the end of the package's hook. With `--whole` nothing is recorded, so all is proved always.

The exit code is 1 if the proofs took more than 1.5 times the merge, or later more than 1.2 times
what they took early.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.dbt.dbtproject import SESSION, DbtProject  # noqa: E402
from tests.dbt.rawtables import RawSchema, sync_time  # noqa: E402

COLUMNS = (
    "id bigint, updated_at timestamp, customer bigint, status string, amount decimal(12,2), "
    "quantity int, note string, country string"
)
SETTINGS = {"primary_key": "id", "cursor_field": "updated_at"}
TESTS = (
    "batches_accounted",
    "state_not_ahead",
    "state_not_behind",
    "inclusive_cursor",
    "cursor_not_null",
    "no_future_cursor",
    "duplicate_in_batch",
    "exact_redelivery",
    "redelivered_at_boundary",
    "cursor_conflict",
    "no_cursor_regression",
)
MODEL = """\
{{ config(materialized='deduped_latest', primary_key='id', cursor_field='updated_at') }}
select * from {{ source('shop', 'orders') }}
"""
MERGE, TOGETHER = "orders_latest", "together"
Seconds = Mapping[str, float]


class Shop:
    """The raw table, its state and ledger, and the project."""

    def __init__(self, spark: Any, folder: Path, keys: int, *, whole: bool) -> None:
        self.spark, self.keys, self.batch = spark, keys, 0
        self.raw = RawSchema(spark, "raw")
        self.raw.create("orders", COLUMNS)
        variables: dict[str, Any] = {"strandline__raw_schema": "raw"}
        variables["strandline__record_proofs"] = not whole
        self.project = DbtProject(
            spark,
            folder,
            schema="mart",
            raw_schema="raw",
            settings={"vars": variables},
            output={**SESSION, "threads": 2},
        )
        self.project.write("models/orders_latest.sql", MODEL)
        table = {
            "name": "orders",
            "config": {"meta": {"strandline": SETTINGS}},
            "data_tests": [f"strandline.{test}" for test in TESTS],
        }
        proofs = ["strandline.unique_key", "strandline.latest_matches_raw"]
        self.project.write(
            "models/orders.yml",
            {
                "sources": [{"name": "shop", "schema": "raw", "tables": [table]}],
                "models": [{"name": "orders_latest", "data_tests": proofs}],
            },
        )
        self.manifest = self.project.parse()

    def sync(self) -> None:
        """Appends all keys as the first batch, a hundredth of them as each later one."""
        self.batch += 1
        first = self.batch == 1
        rows = self.keys if first else self.keys // 100
        at = f"timestamp '{sync_time(self.batch):%Y-%m-%d %H:%M:%S}+00:00'"
        key = "id" if first else f"(id * 7919 + {self.batch} * 104729) % {self.keys}"
        frame = self.spark.range(rows).selectExpr(
            f"{key} as id", f"{at} - make_interval(0, 0, 0, 0, 0, 0, id % 3600) as updated_at"
        )
        payload = (
            "id % 1000003 as customer",
            "if(id % 3 = 0, 'open', 'shipped') as status",
            f"cast(id % 100000 + {self.batch} as decimal(12,2)) / 100 as amount",
            "cast(id % 17 as int) as quantity",
            "concat('order ', md5(cast(id as string))) as note",
            "substring('DEFRITESUKUSJP', 1 + 2 * (id % 7), 2) as country",
        )
        frame = frame.selectExpr("id", "updated_at", *payload)
        frame = frame.withColumn("amount", frame["amount"].cast("decimal(12,2)"))
        stamped = frame.selectExpr(
            "*",
            "'shop' as _cq_source_name",
            f"{at} as _cq_sync_time",
            f"{self.batch}L as _cq_batch",
            "monotonically_increasing_id() as _cq_seq",
            f"xxhash64({', '.join(frame.columns)}) as _cq_row_hash",
            "false as _cq_deleted",
            "1L as _cq_generation",
        )
        writer = stamped.writeTo("raw.orders")
        writer.option("snapshot-property.strandline.batch", str(self.batch)).append()
        cursor = f"{sync_time(self.batch):%Y-%m-%d %H:%M:%S}"
        low = f"{sync_time(self.batch - 1):%Y-%m-%d %H:%M:%S}"
        state = {"batch": self.batch, "cursor": cursor, "cursor_field": "updated_at"}
        self.raw.states("orders", [(self.batch, {**state, "cursor_type": "timestamp"})])
        entry = {
            "batch": self.batch,
            "cursor_field": "updated_at",
            "cursor_type": "timestamp",
            "cursor_low": None if first else low,
            "cursor_high": cursor,
            "rows_read": rows,
            "rows_appended": rows,
            "started_at": sync_time(self.batch),
        }
        self.raw.syncs("orders", [entry])

    def build(self) -> Seconds:
        """Merges the newest batch and proves; returns the seconds by node."""
        built = self.project.run("run", "--select", MERGE, manifest=self.manifest)
        began = time.monotonic()
        proved = self.project.run(
            "test", "--select", MERGE, "source:shop.orders", manifest=self.manifest
        )
        seconds = {TOGETHER: time.monotonic() - began}
        wrong = {name: one for name, one in {**built, **proved}.items() if one.status not in GOOD}
        assert not wrong, wrong
        seconds |= {name: one.seconds for name, one in built.items()}
        return seconds | {_test_of(name): one.seconds for name, one in proved.items()}


GOOD = ("success", "pass")


def _test_of(name: str) -> str:
    known = sorted((*TESTS, "unique_key", "latest_matches_raw"), key=len, reverse=True)
    return next(test for test in known if test in name)


def main(arguments: Sequence[str]) -> int:
    """Prints the seconds; returns 1 if they are more than the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=4_000_000)
    parser.add_argument("--builds", type=int, default=200)
    parser.add_argument("--early", type=int, default=20)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--whole", action="store_true", help="prove everything, always")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="strandline-proofs-"))
    os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
    from loader.runtime.profile import load_profile
    from loader.runtime.spark import session

    spark = session(
        load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    )
    try:
        shop = Shop(spark, folder / "project", chosen.keys, whole=chosen.whole)
        return _measured(shop, chosen.builds, chosen.early, chosen.window)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _measured(shop: Shop, builds: int, early: int, window: int) -> int:
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    shop.sync()
    shop.build()
    for build in range(1, builds + 1):
        shop.sync()
        # in between, only what keeps tables and proofs as they would be
        seconds = shop.build()
        proofs = sum(spent for name, spent in seconds.items() if name not in (MERGE, TOGETHER))
        print(
            f"build {build}: merge {seconds[MERGE]:.1f} s, proofs {proofs:.1f} s, "
            f"{seconds[TOGETHER]:.1f} s together",
            file=sys.stderr,
            flush=True,
        )
        for until in (early, builds):
            if until - window < build <= until:
                for name, spent in {**seconds, "all proofs": proofs}.items():
                    found[name][until].append(spent)
    print(f"{'seconds, median':28} {f'to {early}':>8} {f'to {builds}':>8}")
    for name, by in sorted(found.items(), key=lambda one: -median(one[1][builds])):
        print(f"{name:28} {median(by[early]):8.2f} {median(by[builds]):8.2f}")
    merge, proofs_, together = (found[n] for n in (MERGE, "all proofs", TOGETHER))
    beside = median(together[builds]) / median(merge[builds])
    later = median(proofs_[builds]) / median(proofs_[early])
    print(f"proofs, together, are {beside:.2f} x the merge; the later ones {later:.2f} x the early")
    return 1 if beside > 1.5 or later > 1.2 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
