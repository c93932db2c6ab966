"""Guards that `loader audit` reports each planted difference and no others."""

from __future__ import annotations

from tests.audit.conftest import Shop

NO_GRACE = ("--grace", "0")


def _get_counts(found: dict[str, object]) -> dict[str, object]:
    return {kind: found[kind] for kind in ("lost", "stale", "extra", "doubled", "lag")}


def test_an_equal_copy_has_no_differences(shop: Shop) -> None:
    found = shop.audit(shop.write(shop.rows()))
    assert found["equal"]
    assert _get_counts(found) == dict.fromkeys(("lost", "stale", "extra", "doubled", "lag"), 0)
    assert (found["rows_source"], found["rows_copy"], found["share"]) == (1000, 1000, 1.0)
    assert (found["key"], found["cursor"]) == (["id"], "updated_at")


def test_each_kind_is_found_with_its_keys_columns_and_days(shop: Shop) -> None:
    rows = shop.rows()
    kept = [row for row in rows if row["id"] not in (10, 400)]
    copied = [dict(row, note="old", amount=None) if row["id"] == 500 else row for row in kept]
    copied.append(rows[599])
    copied.append(dict(rows[0], id=5000))
    found = shop.audit(shop.write(copied))
    assert _get_counts(found) == {"lost": 2, "stale": 1, "extra": 1, "doubled": 1, "lag": 0}
    assert {(e["kind"], e["key"], *sorted(e["columns"])) for e in found["examples"]} == {
        ("lost", "id=10"),
        ("lost", "id=400"),
        ("stale", "id=500", "amount", "note"),
        ("extra", "id=5000"),
        ("doubled", "id=600"),
    }
    assert found["columns"] == {"amount": 1, "note": 1}
    assert [(day["day"], day["lost"]) for day in found["days"] if day["lost"]] == [
        ("2025-03-01", 1),
        ("2025-03-17", 1),
    ]


def test_rows_above_the_copy_are_lag_and_rows_below_are_lost(shop: Shop) -> None:
    rows = [row for row in shop.rows() if row["id"] <= 990 and row["id"] not in (985, 990 - 200)]
    copy = shop.write(rows)
    within_grace = shop.audit(copy, "--grace", "10h")
    assert _get_counts(within_grace) | {"lag": 11} == _get_counts(within_grace)
    assert within_grace["lost"] == 1
    without = shop.audit(copy, *NO_GRACE)
    assert (without["lost"], without["lag"]) == (2, 10)


def test_the_report_escapes_names_and_loads_nothing(shop: Shop) -> None:
    shop.database.execute('create table "<b>bold</b>" (id int primary key, "<i>x" text)')
    shop.database.execute("""insert into "<b>bold</b>" values (1, 'a'), (2, 'b')""")
    path = shop.folder / "audit.html"
    copy = shop.write([{"id": 1, "ix": "<script>"}], columns="id int, ix string")
    found = shop.audit(copy, "--report", str(path), "--grace", "0", table="<b>bold</b>")
    page = path.read_text()
    assert (found["lost"], found["stale"]) == (1, 1)
    assert "differs from &lt;b&gt;bold&lt;/b&gt;: 1 row lost, 1 stale." in page
    assert not {"<script", "<b>", "<i>", "http://", "https://"} & {
        part for part in ("<script", "<b>", "<i>", "http://", "https://") if part in page
    }
