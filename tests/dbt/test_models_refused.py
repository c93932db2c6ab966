"""Models that cannot be built: one clear message each, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.shop import META, READS, Shop, gone, row

READ = READS % "orders"
RENAMED = f"select id as order_id, cursor, status, {META} from {{{{ source('shop', 'orders') }}}}"
NAMELESS = "select * from {{ target.schema | replace('analytics', 'raw') }}.orders"
RATES = "{{ source('others', 'rates') }}%s as r on o.id = r.id"
SINCE = "datediff('today', _cq_sync_time) as since"
FIXED = "{{ source('others', 'rates') }} version as of 'fixed'"
UNION = "select * from ({{ strandline.union_raw([source('shop', 'orders')]) }}) as orders"


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    shop = Shop(project, raw, ["orders", "one"])
    raw.append("orders", 1, [row(1, 1), row(2, 1)])
    raw.append("orders", 2, [row(1, 2, "shut"), gone(2, 2), row(200, 1)])
    raw.append("one", 1, [row(1, 1), row(2, 1)])
    raw.spark.sql(f"create table {raw.schema}.rates using iceberg as select 1 as id, 2 as rate")
    refs = ("orders create tag audited", "orders create branch audit", "rates create tag fixed")
    for ref in refs:
        raw.spark.sql(f"alter table {raw.schema}.{ref}")
    others = {
        "name": "others",
        "schema": raw.schema,
        "tables": [{"name": "rates"}, {"name": "late"}],
    }
    project.write("models/others.yml", {"sources": [others]})
    return shop


@pytest.fixture(autouse=True)
def proved(shop: Shop) -> Iterator[None]:
    """After each test, what it built is proved."""
    yield
    shop.prove()


REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "not_synced": (
        *("latest", "select * from {{ source('others', 'late') }}", {}),
        ".late: it has not been synced into this warehouse. Run `loader run --select others.late`",
    ),
    "as_of_text": ("latest", READ, {"as_of": "1"}, "A batch is a number: as_of=1, or"),
    "no_type": (
        *("latest", READ.replace("*", "*, null as note"), {}),
        "its column note is a bare null, so it has no type",
    ),
    "semicolon": ("history", READ + " ; -- done", {}, "its SELECT ends in a semicolon"),
    "by_validity": (
        *("history", READ, {"row_filter": "valid_from > '2025-01-01'"}),
        "its row_filter names valid_from, which the history computes",
    ),
    "by_day": (
        *("latest", READ, {"row_filter": "cursor > day(current_date)"}),
        "its row_filter uses current_date, whose result changes without a new version",
    ),
    "by_time": (
        *("history", READ, {"row_filter": "unix_timestamp() > cursor"}),
        "its row_filter uses unix_timestamp, whose result changes without a new version",
    ),
    "stale_text": (
        *("latest", READ, {"delete_stale": "false"}),
        "delete_stale is 'false', not true or false. Write it without quotes",
    ),
    "by_list": (
        *("latest", READ, {"row_filter": ["status = 'open'"]}),
        "not an SQL condition. Write it as a string",
    ),
    "by_select": (
        *("latest", READ, {"row_filter": "id in (select 1)"}),
        "its row_filter uses another SELECT, whose result changes",
    ),
    "by_today": (
        *("latest", READ, {"row_filter": "cursor > unix_date(date 'today')"}),
        "its row_filter uses date 'today', whose result changes without a new version",
    ),
    "by_now": (
        *("latest", READ, {"row_filter": "cast(status as timestamp) > 'now'"}),
        "its row_filter uses 'now', whose result changes without a new version",
    ),
    "till_now": (
        *("latest", READ.replace("*", "*, to_timestamp('now') as till"), {}),
        "its SELECT uses 'now', which gives something else at each build",
    ),
    "till_today": (
        *("latest", READ.replace("*", '*, transform(array(date"today"), d -> d) as till'), {}),
        'its SELECT uses date"today", which gives something else at each build',
    ),
    "till_there": (
        *("latest", READ.replace("*", "*, cast(('today Europe/Berlin') as date) as till"), {}),
        "its SELECT uses 'today Europe/Berlin', which gives something else at each build",
    ),
    "since": (
        *("history", READ.replace("*", '*, datediff(" Now", _cq_sync_time) as since'), {}),
        'its SELECT uses " Now", which gives something else at each build',
    ),
    "since_a_month": (
        *(
            "latest",
            READ.replace("*", "*, cast(trim('today') as date) > '2026-06-01' as rated"),
            {},
        ),
        "its SELECT uses 'today', which gives something else at each build",
    ),
    "by_hour": (
        *(
            "latest",
            READ,
            {"row_filter": "status = 'open' and hour(cast('now' as timestamp)) < 12"},
        ),
        "its row_filter uses 'now', whose result changes without a new version",
    ),
    "by_clock": (
        *("latest", READ, {"row_filter": "_cq_sync_time > '10:30'"}),
        "its row_filter uses '10:30', whose result changes without a new version",
    ),
    "by_shift": (
        *(
            "latest",
            READ.replace(
                "*",
                "*, cast(case when id > 1 then '08:00' else '18:00' end as timestamp) as begins",
            ),
            {},
        ),
        "its SELECT uses '08:00', which gives something else at each build",
    ),
    "by_either": (
        *("latest", READ, {"row_filter": "if(id > 1, '07:30', status) < _cq_sync_time"}),
        "its row_filter uses '07:30', whose result changes without a new version",
    ),
    "by_default": (
        *("latest", READ.replace("*", "*, cast(coalesce(status, '06:30') as timestamp) as t"), {}),
        "its SELECT uses '06:30', which gives something else at each build",
    ),
    "beside_a_schema": (
        *("latest", READ.replace("*", "*, from_json(status, 'now int') as s, " + SINCE), {}),
        "its SELECT uses 'today', which gives something else at each build",
    ),
    "in_place": (
        *("latest", READ.replace("*", "o.*, o._pos as place") + " as o", {}),
        "its SELECT uses _pos, which gives something else at each build",
    ),
    "quoted": (
        *("latest", READ.replace("*", "*, `current_date` as day"), {}),
        "its SELECT uses current_date, which gives something else at each build",
    ),
    "in_values": (
        *("latest", f"select * from ({READ}) join (values (date /* */ 'Yesterday')) as v(day)", {}),
        "its SELECT uses date 'Yesterday', which gives something else at each build",
    ),
    "who": (
        *("latest", READ.replace("*", "*, user as who"), {}),
        "its SELECT uses user, which gives something else at each build",
    ),
    "reserved": (
        *("latest", READ.replace("*", "*, posexplode(array(id)) as (_pos, v)"), {}),
        "its SELECT has a column _pos, a name that Iceberg keeps for itself",
    ),
    "place": (
        *("latest", READ.replace("*", "*, _pos + 1 as place"), {}),
        "its SELECT uses _pos, which gives something else at each build",
    ),
    "sampled": (
        *("history", READ + " tablesample (50 percent)", {}),
        "its SELECT uses tablesample, which gives something else at each build",
    ),
    "by_zone": (
        *("latest", READ, {"row_filter": "status <> current_timezone ()"}),
        "its row_filter uses current_timezone, whose result changes without a new version",
    ),
    "by_nothing": ("latest", READ, {"row_filter": " "}, "is not one SQL condition"),
    "by_statement": (
        *("latest", READ, {"row_filter": "status = 'open';"}),
        "is not one SQL condition. Write it without a semicolon",
    ),
    "at": (
        *("latest", READ.replace("*", "*, current_timestamp() as built_at"), {}),
        "its SELECT uses current_timestamp, which gives something else at each build",
    ),
    "any_id": (
        *("history", READ.replace("*", "*, uuid() as any_id"), {}),
        "its SELECT uses uuid, which gives something else at each build",
    ),
    "two_columns": (
        *("latest", READ.replace("*", "*, upper(status) as Status"), {}),
        "its SELECT has two columns named Status",
    ),
    "by_map": (
        *("latest", READ.replace("*", "*, map(id, id) as m"), {"primary_key": ["id", "m"]}),
        "its primary_key m is of type map<int,int>, and maps cannot be compared",
    ),
    "old_format": (
        *("latest", READ, {"tblproperties": {"format-version": "1"}}),
        "sets format-version 1, in which Iceberg cannot delete rows",
    ),
    "nameless": (
        *("latest", NAMELESS, {}),
        "its SELECT names no raw table by source()",
    ),
    "elsewhere": (
        *("history", NAMELESS + " -- {{ source('shop', 'one') }}", {}),
        ".one, but its SELECT reads ",
    ),
    "tagged": (
        *("latest", READ + " version as of 'audited'", {}),
        ".orders at a tag, a branch or a time (version as of), but new batches are looked for",
    ),
    "timed": (
        *("history", READ + " for /* x */ TIMESTAMP AS OF '2999-01-01' as o", {}),
        "and name the moment in the model's config: as_of={'tag': 'january'}",
    ),
    "branched": (
        *("latest", READ + ".branch_audit", {}),
        ".orders at a tag, a branch or a time (branch_audit), but new batches are looked for",
    ),
    "tagged_beside": (
        *("latest", f"select o.* from ({READ}) as o left join {RATES % '.`tag_fixed`'}", {}),
        ".rates at a tag or a branch (tag_fixed), and when that moves, no build sees it",
    ),
    "versioned_beside": (
        *("history", f"select * from ({READ}) where id in (select id from {FIXED})", {}),
        "Read the table itself, or one Iceberg snapshot of it by its number",
    ),
    "renamed_and_filtered": (
        *("latest", RENAMED + " where status = 'open'", {"primary_key": "order_id"}),
        "leaves out 2 versions, and raw has no column order_id to tell whether it keeps others",
    ),
}


def test_says_what_to_do(shop: Shop) -> None:
    for name, (kind, select, config, _) in REFUSED.items():
        shop.model(name, select, f"deduped_{kind}", **config)
    messages = shop.messages(*REFUSED)
    for name, (kind, _, _, words) in REFUSED.items():
        assert words in messages[name]
        assert f"Model '{name}' (deduped_{kind})" in messages[name]
        assert not shop.has(name)


def test_what_only_looks_alike_is_built(shop: Shop) -> None:
    """Such words in text, names and comments; a filter on a part of the key that keeps its name."""
    said = "status <> 'now' and status <> 'current_date; (select)' and "
    said += "unix_timestamp('2025-01-01', 'yyyy-MM-dd') > 0"
    words = READ.replace("*", "*, 'now()' as `current_user`, status as uuid, 1 as current_date")
    shop.model("text", words + " -- is this all; or\n/* no; */", row_filter=said)
    columns = "o.*, t.*, _pos + 1 as place, transform(array(id), x -> x + 1) as next, "
    columns += "current_time = 'b' as timed, status in ('NOW', 'b', 'today') as due, "
    columns += "md5('now') as sum, map('today', 1, 'now', 2)[status] as known, "
    columns += (
        "from_json(status, 'now string') as parsed, substr('today', 1, 3) > '08:30' as part, "
    )
    columns += "_cq_sync_time + interval '10:30' hour to minute as later, "
    columns += "cast(cast(id as string) || ':30' as timestamp) > '2025-01-01' as late, "
    columns += "case when id > 1 then '08:00' else status end as shift, "
    columns += "if(id > 1, '07:30', status) = 'b' as either, coalesce(status, '06:30') as told"
    table = "(values ('now', date '2025-01-01', 'user')) as t(current_time, localtimestamp, user)"
    looks = f"/* a /* nested */ now() */ select {columns} from ({READ}) as o join {table} "
    looks += "lateral view posexplode(array('today')) as _pos, v "
    looks += "where status > 'today' or to_timestamp('now', 'yyyy') is null or user = 'x'"
    shop.model("looks", looks, row_filter="user = 'user' and not status between 'now' and 'b'")
    shop.model("renamed", RENAMED, primary_key="order_id", row_filter="order_id < 100")
    of_source = {"primary_key": ["_cq_source_name", "order_id"]}
    shop.model("of_source", RENAMED + " where _cq_source_name = 'elsewhere'", **of_source)
    built = ("text", "looks", "renamed", "of_source", "rated")
    snapshot = f"select snapshot_id from {shop.raw.schema}.rates.snapshots"
    [[number]] = shop.project.spark.sql(snapshot).collect()
    at = RATES.replace("%s", f" version as of {number}")
    shop.model("rated", f"select o.*, r.id as `r.tag_id` from ({READ}) as o left join {at}")
    assert shop.messages(*built) == dict.fromkeys(built, "BUILD to batch 2")
    assert [one["order_id"] for one in shop.project.rows("renamed")] == [1]


def test_a_union_of_one_table(shop: Shop) -> None:
    """As a growing list begins: `_cq_table` is already in the key."""
    union = UNION.replace("orders", "one") + " where id < 100"
    kinds = ("union_latest", "union_history")
    for name in kinds:
        kind = name.replace("union", "deduped")
        shop.model(name, union, kind, primary_key=["_cq_table", "id"])
    assert shop.messages(*kinds) == dict.fromkeys(kinds, "BUILD to batch 1")
    shop.raw.append("one", 2, [row(1, 2, "shut"), gone(2, 2), row(200, 1)])
    assert shop.messages(*kinds) == dict.fromkeys(kinds, "MERGE to batch 2")


def test_without_its_ledger_a_model_does_not_guess_what_a_refresh_found(shop: Shop) -> None:
    """The raw table has batches, so there was a ledger; its name may be misspelt."""
    shop.model("unledgered", READ, delete_stale=True)
    flags = ("--vars", "{strandline__syncs_table: _cq_sincs}")
    told = shop.build("unledgered", flags=flags)
    assert "the ledger that says which ones are complete is not there" in told
    assert "_cq_sincs" in told
    assert shop.build("unledgered") == "BUILD to batch 2"
