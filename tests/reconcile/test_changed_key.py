"""After a change of the key, older rows whose new key columns are null are not deleted keys."""

from __future__ import annotations

import pytest

from tests.reconcile.shop import Shop, line, missed, nothing, reconcile
from tests.sync.project import Project


# ("id, code", False) is missing: if a key is not declared, null may be a value of one column.
@pytest.mark.parametrize(
    ("key", "is_declared"), [("code", True), ("id, code", True), ("code", False)]
)
@pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)
def test_after_a_change_of_the_key(
    project: Project, shop: Shop, key: str, is_declared: bool
) -> None:
    shop.execute(
        "create table orders (id int not null primary key, note varchar(9), "
        "at timestamp not null, code int)",
        "insert into orders values "
        + ", ".join(f"({i}, 'a', timestamp('2026-01-01 00:00:{i:02}'), null)" for i in range(20)),
    )
    shop.configure(project, ["orders"], cursor_field="at")
    project.run()
    drop = "drop primary key" if "mariadb" in str(shop) else "drop constraint orders_pkey"
    shop.execute(
        "update orders set code = id + 100",
        f"alter table orders {drop}",
        *([f"alter table orders add primary key ({key})"] if is_declared else []),
    )
    options = {} if is_declared else {"primary_key": key.split(", ")}
    shop.configure(project, ["orders"], cursor_field="at", **options)
    project.run("--full-refresh")
    found = "select count(*), count(code), count_if(_cq_deleted) from raw.orders"
    assert project.rows(found) == [(40, 20, 0)]
    ran = reconcile(project, "--repair")
    assert (missed(ran, "shop.orders"), line(ran, "shop.orders")["status"]) == (nothing(), "equal")
    assert project.rows(found) == [(40, 20, 0)]
