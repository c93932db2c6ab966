"""Measures what the first and the last of many incremental builds read: the new batch only.

    python benchmarks/builds.py [builds]

The same kind of batch (new versions of the same hundred of ten thousand keys) is appended again and
again, each time followed by a build of a latest table and a history, in one process. Files and
bytes are Spark's own scan metrics for the raw table and for the table that is merged into, as means
over the first twenty builds and over the last twenty. Fewer builds would not be enough, because a
table's small files accumulate until a build merges them. The exit code is 1 if the last builds read
a tenth more bytes, or more files of the raw table.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.dbt.dbtproject import DbtProject  # noqa: E402
from tests.dbt.rawtables import RawSchema  # noqa: E402

KEYS = 10_000
DELTA = 100
BUILDS = 200
WINDOW = 20
MODEL = """\
{{{{ config(
    materialized='{materialized}',
    unique_key='id',
    meta={{'strandline': {{'cursor_field': 'cursor'}}}},
) }}}}
select * from {{{{ source('shop', 'orders') }}}}
"""


def main(builds: int) -> int:
    """Prints what was read. Returns 1 if later builds read more than a tenth more."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-builds-"))
    os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
    from loader.spark.profile import load_profile
    from loader.spark.session import session

    spark = session(
        load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    )
    try:
        return _measured(spark, folder, builds)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _measured(spark: Any, folder: Path, builds: int) -> int:
    raw = RawSchema(spark, "raw")
    raw.create("orders", "id int, cursor int, payload string")
    project = DbtProject(spark, folder / "project", schema="mart", raw_schema="raw")
    models = {"latest": "deduped_latest", "history": "deduped_history"}
    for name, materialized in models.items():
        project.write(f"models/{name}.sql", MODEL.format(materialized=materialized))
    sources = [{"name": "shop", "schema": "raw", "tables": [{"name": "orders"}]}]
    project.write("models/sources.yml", {"sources": sources})
    manifest = project.parse()
    raw.append("orders", 1, [{"id": n, "cursor": 0, "payload": f"row {n}"} for n in range(KEYS)])
    project.run("run", "--select", *models, manifest=manifest)
    looked_at = {
        f"1-{WINDOW}": range(1, WINDOW + 1),
        f"{builds - WINDOW + 1}-{builds}": range(builds - WINDOW + 1, builds + 1),
    }
    read: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for build in range(1, builds + 1):
        rows = [{"id": n, "cursor": build, "payload": f"row {n}"} for n in range(DELTA)]
        raw.append("orders", build + 1, rows)
        stretch = next((name for name, within in looked_at.items() if build in within), None)
        # Models are built one by one for the measured builds, so that each model's reads are known.
        for chosen in [[name] for name in models] if stretch else [list(models)]:
            after = _newest(spark)
            results = project.run("run", "--select", *chosen, manifest=manifest)
            assert {one.status for one in results.values()} == {"success"}, results
            if stretch:
                for table in ("raw.orders", f"mart.{chosen[0]}"):
                    read[chosen[0], table, stretch].update(_scanned(spark, table, after))
        if build % 10 == 0:
            print(f"{build} builds", file=sys.stderr, flush=True)
    return _told(read, list(looked_at))


def _told(read: Mapping[tuple[str, str, str], Counter[str]], stretches: Sequence[str]) -> int:
    """Prints the means. Returns 1 if the later means are a tenth higher."""
    print(f"{'builds':>8} {'model':8} {'table':14} {'files':>7} {'bytes':>12} {'rows':>9}")
    for (model, table, stretch), total in sorted(read.items()):
        files, size, rows = (total[what] / WINDOW for what in ("files", "bytes", "rows"))
        print(f"{stretch:>8} {model:8} {table:14} {files:>7,.1f} {size:>12,.0f} {rows:>9,.0f}")
    early, late = stretches
    grown = [
        f"{model} reads more {what} of {table}"
        for model, table, stretch in sorted(read)
        # The number of a merged table's files rises and falls as builds rewrite them.
        for what in (["files", "bytes"] if table == "raw.orders" else ["bytes"])
        if stretch == late
        and read[model, table, late][what] > 1.1 * read[model, table, early][what]
    ]
    print("\n".join(grown) or f"builds {late} read what builds {early} did")
    return 1 if grown else 0


def _executions(spark: Any) -> tuple[Any, Iterator[int]]:
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    found = store.executionsList()
    return store, (int(found.apply(at).executionId()) for at in range(found.size()))


def _newest(spark: Any) -> int:
    return max(_executions(spark)[1])


def _scanned(spark: Any, table: str, after: int) -> dict[str, int]:
    """Returns the files, bytes and rows of a table that statements after this one have read."""
    names = {
        "number of result data files": "files",
        "total data file size (bytes)": "bytes",
        "number of output rows": "rows",
    }
    total = dict.fromkeys(names.values(), 0)
    store, executions = _executions(spark)
    for execution in executions:
        if execution <= after:
            continue
        values = store.executionMetrics(execution)
        nodes = store.planGraph(execution).allNodes()
        for node in (nodes.apply(at) for at in range(nodes.size())):
            if not node.name().startswith("BatchScan") or table not in node.name():
                continue
            for metric in (node.metrics().apply(at) for at in range(node.metrics().size())):
                value = values.get(metric.accumulatorId())
                if metric.name() in names and value.isDefined():
                    digits = "".join(c for c in str(value.get()).split("(")[0] if c.isdigit())
                    total[names[metric.name()]] += int(digits or 0)
    return total


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else BUILDS))
