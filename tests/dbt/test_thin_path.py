from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema, sync_time
import time

def test_thin(project: DbtProject, raw: RawSchema) -> None:
    raw.create("orders", "id int, updated_at timestamp, amount decimal(10,2), m map<string,int>")
    def ledger(b, low, high, n):
        raw.state("orders", b, {"batch": b, "cursor": high, "cursor_field": "updated_at", "cursor_type":"timestamp","generation":1})
        raw.sync("orders", b, cursor_field="updated_at", cursor_type="timestamp", cursor_low=low, cursor_high=high, rows_appended=n)
    raw.append("orders", 1, [{"id": 1, "updated_at": sync_time(1), "m": {"a":1}}, {"id": 2, "updated_at": sync_time(1)}])
    ledger(1, None, str(sync_time(1)), 2)
    t = ["strandline.unique_key", "strandline.latest_matches_raw"]
    project.write("models/latest.sql", "{{ config(materialized='deduped_latest', primary_key='id', cursor_field='updated_at') }} select * from {{ source('shop','orders') }}")
    project.write("models/sources.yml", {"sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": "orders",
      "config": {"meta": {"strandline": {"primary_key": "id", "cursor_field": "updated_at"}}},
      "data_tests": [f"strandline.{x}" for x in ("cursor_conflict","exact_redelivery","inclusive_cursor","state_not_ahead","batches_accounted")]}]}],
      "models": [{"name": "latest", "data_tests": ["strandline.unique_key", {"strandline.latest_matches_raw": {"arguments": {"raw": "source('shop','orders')"}}}]}]})
    m = project.parse()
    for step in range(3):
        if step == 2:
            raw.append("orders", 2, [{"id": 1, "updated_at": sync_time(2), "_deleted": True}, {"id": 3, "updated_at": sync_time(2)}])
            ledger(2, str(sync_time(1)), str(sync_time(2)), 2)
        t = time.time()
        r = project.run("build", manifest=m)
        print(time.time() - t, *[(x.name, x.status, x.failures, x.message) for x in r.values()], sep="\n")
    for x in ("cq_state_current","cq_sync_log","cq_duplicates"): print(project.rows(x))
