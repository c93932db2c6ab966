"""Detects masks that were added, changed or removed after rows were loaded.

The state and the commit of each batch store the masks that were applied to the rows of the raw
table. The raw table is append-only, so a new mask does not change rows that are already loaded. If
masks have changed, a table cannot be synced until all rows are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.lake import Lake
from loader.lake.source_schema import read_source_schema
from loader.names import is_wildcard
from loader.rows.mask_values import HASH
from loader.sources.interface import REST_COLUMN
from loader.sources.masked_table import MaskedTable
from loader.state import TableState
from loader.sync.ownership import select_own_rows
from loader.sync.table_plan import FULL_REFRESH, TablePlan

_UNMASKED = "none"
"""The value that is stored for a column that has no mask."""


def describe_masks(
    plan: TablePlan, stored: Mapping[str, Any] | None, added: Sequence[str] = ()
) -> Mapping[str, Any] | None:
    """Returns the masks to store with a batch, or None if no column is masked.

    Args:
        stored: the stored masks. Masks of columns that the source has dropped are kept, because the
            raw table still has these columns.
        added: columns that this batch adds to the raw table, but that the next sync again treats as
            added (:meth:`loader.lake.schema_evolution.Drift.defer_added`). They are stored even
            without a mask, because the stored schema of the source does not contain them yet.
    """
    columns = {name: mask for name, mask in _list_masks(stored).items() if not _has(plan, name)}
    columns |= {name.lower(): _UNMASKED for name in added}
    wildcards = _list_wildcards(plan)
    key = (stored or {}).get("key") if HASH in columns.values() else None
    if isinstance(plan.table, MaskedTable):
        columns |= {name.lower(): mask for name, mask in plan.table.masks.items()}
        key = plan.table.key_id or key
    if not columns and not wildcards:
        return None
    return {
        "columns": columns,
        **({"key": key} if key else {}),
        **({"wildcards": wildcards} if wildcards else {}),
    }


def check_masks(
    plan: TablePlan, lake: Lake, state: TableState | None, warn: Callable[[str], None]
) -> None:
    """Checks that no mask of a loaded column has changed, unless all rows are read again.

    Args:
        warn: called if masks have changed and all rows are read again, because older rows stay in
            the raw table.

    Raises:
        TableError: if masks have changed but only new rows would be read, or if the mask of a key
            column has changed.
    """
    if state is None or not state.batch:
        return
    if not state.masks and not isinstance(plan.table, MaskedTable):
        return
    if not lake.exists(plan.lake_table):
        return
    changed = _find_changes(plan, lake, state.masks)
    if not changed:
        return
    names = ", ".join(changed)
    what = f"the masks or the mask_key of loaded columns have changed: {names}"
    drop = f"`drop table {lake.schema}.{plan.lake_table} purge`"
    if set(changed) & {name.lower() for name in plan.key}:
        raise TableError(
            f"{what}. New values of a key column would not replace rows with its old values",
            where=f"table {plan.name}, mask",
            remedy=f"Drop the raw table ({drop}) and the models that read it, and run again; or "
            "undo the change",
        )
    if plan.mode != FULL_REFRESH:
        raise TableError(
            f"{what}. Rows that are already loaded would keep their old values",
            where=f"table {plan.name}, mask",
            remedy=f"To remove the old values, drop the raw table ({drop}) and the models that "
            "read it, and run again. To keep the old rows in the raw table, run `loader run "
            f"--full-refresh --select {plan.name}`. Or undo the change",
        )
    warn(
        f"{what}. All rows are read again, but rows of earlier batches stay in the raw table with "
        f"their old values. To remove them, drop the raw table ({drop}) and the models that read "
        "it, and run again"
    )


def _find_changes(plan: TablePlan, lake: Lake, stored: Mapping[str, Any] | None) -> list[str]:
    """Returns the columns, in lower case, that were loaded with a different mask or mask key."""
    # The columns of the raw table are not used, because an interrupted run may have added a column
    # without loading it.
    properties = lake.properties(plan.lake_table)
    schema = read_source_schema(properties, plan.policy.source, f"table {plan.name}")
    before = _list_masks(stored)
    loaded = {*before, *schema.columns, *schema.dropped} if schema else {*before}
    masks, key_id = {}, ""
    if isinstance(plan.table, MaskedTable):
        masks = {name.lower(): mask for name, mask in plan.table.masks.items()}
        key_id = plan.table.key_id
    has_other_key = (stored or {}).get("key") != key_id
    changed = [
        name
        for name in (each.lower() for each in plan.table.schema.names)
        if name in loaded
        and (
            before.get(name, _UNMASKED) != masks.get(name, _UNMASKED)
            or (masks.get(name) == HASH and has_other_key)
        )
    ]
    if REST_COLUMN not in changed and _has(plan, REST_COLUMN):
        has_other_wildcards = (stored or {}).get("wildcards", []) != _list_wildcards(plan)
        if has_other_wildcards and _has_rest(plan, lake):
            changed.append(REST_COLUMN)
    return changed


def _has_rest(plan: TablePlan, lake: Lake) -> bool:
    raw = select_own_rows(plan, lake.frame(plan.lake_table))
    if REST_COLUMN not in raw.columns:
        return False
    return not raw.where(f.col(REST_COLUMN).isNotNull()).isEmpty()


def _list_wildcards(plan: TablePlan) -> list[str]:
    """Returns the sorted wildcards of the `mask` option if the table has a :data:`REST_COLUMN`.

    Wildcards also mask fields within this column. The masks of these fields are not stored, so
    the wildcards are stored instead.
    """
    if not isinstance(plan.table, MaskedTable) or not _has(plan, REST_COLUMN):
        return []
    return sorted(name.lower() for name in plan.table.patterns if is_wildcard(name))


def _list_masks(stored: Mapping[str, Any] | None) -> dict[str, str]:
    return dict((stored or {}).get("columns", {}))


def _has(plan: TablePlan, name: str) -> bool:
    return name in {each.lower() for each in plan.table.schema.names}
