"""Faults in raw table, state, ledger, latest table or history, each with the test that fails."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = "id int, updated_at timestamp, payload string"
RAW, STATE, SYNCS = "{raw}.orders", "{raw}._cq_state", "{raw}._cq_syncs"
LATEST, HISTORY = "{marts}.orders_latest", "{marts}.orders_history"
ROW = "_cq_source_name, _cq_sync_time, _cq_batch, _cq_seq, _cq_row_hash, _cq_deleted"


@dataclass(frozen=True)
class Fault:
    """A fault and the generic test that must find it.

    Args:
        table: the table that the fault changes; it is restored afterwards.
        statement: the SQL that creates the fault.
        proof: the generic test that must fail.
    """

    table: str
    statement: str
    proof: str


def copied(where: str, **changed: str) -> str:
    """Returns SQL that appends a copy of a raw row with some columns changed."""
    names = ["id", "updated_at", "payload", *ROW.split(", "), "_cq_generation"]
    values = ", ".join(changed.get(name, name) for name in names)
    return f"insert into {RAW} select {values} from {RAW} where {where}"


ACCOUNTED, LATEST_PROOF, HISTORY_PROOF = (
    "batches_complete",
    "matches_raw",
    "matches_raw of the history",
)
STATE_PROOF = "state_consistent"

FAULTS = {
    "raw: a row deleted": Fault(
        RAW, f"delete from {RAW} where id = 1 and _cq_batch = 1", ACCOUNTED
    ),
    "raw: the newest batch deleted": Fault(
        RAW, f"delete from {RAW} where _cq_batch = 4", STATE_PROOF
    ),
    "raw: a batch in the middle deleted": Fault(
        RAW, f"delete from {RAW} where _cq_batch = 2", ACCOUNTED
    ),
    "raw: emptied": Fault(RAW, f"delete from {RAW}", STATE_PROOF),
    "raw: a row doubled": Fault(RAW, copied("id = 1 and _cq_batch = 1"), ACCOUNTED),
    "raw: a row of no batch": Fault(
        RAW, copied("id = 1 and _cq_batch = 1", _cq_batch="null"), ACCOUNTED
    ),
    "raw: a row of batch 0": Fault(
        RAW, copied("id = 1 and _cq_batch = 1", _cq_batch="0"), ACCOUNTED
    ),
    "raw: a batch that no sync brought": Fault(
        RAW, copied("id = 1 and _cq_batch = 1", _cq_batch="5", id="77"), ACCOUNTED
    ),
    "raw: a row in another's place": Fault(
        RAW, f"update {RAW} set id = 78 where id = 3 and _cq_batch = 1", LATEST_PROOF
    ),
    "raw: a payload forged": Fault(
        RAW, f"update {RAW} set payload = 'forged' where id = 2 and _cq_batch = 2", LATEST_PROOF
    ),
    "raw: an old payload forged, with its hash": Fault(
        RAW,
        f"update {RAW} set payload = 'forged', _cq_row_hash = 7 where id = 1 and _cq_batch = 1",
        HISTORY_PROOF,
    ),
    "raw: batches swapped": Fault(
        RAW,
        f"update {RAW} set _cq_batch = 3 - _cq_batch where id in (1, 2) and _cq_batch < 3",
        LATEST_PROOF,
    ),
    "raw: a generation raised": Fault(
        RAW, f"update {RAW} set _cq_generation = 9 where id = 1 and _cq_batch = 1", LATEST_PROOF
    ),
    "raw: a living row made a tombstone": Fault(
        RAW, f"update {RAW} set _cq_deleted = true where id = 3", LATEST_PROOF
    ),
    "raw: a tombstone made a living row": Fault(
        RAW, f"update {RAW} set _cq_deleted = false where _cq_deleted", LATEST_PROOF
    ),
    "raw: a cursor from the future": Fault(
        RAW,
        f"update {RAW} set updated_at = timestamp '2099-01-01 00:00:00' where id = 3",
        "cursor_plausible",
    ),
    "raw: a cursor taken away": Fault(
        RAW, f"update {RAW} set updated_at = null where id = 3", "cursor_plausible"
    ),
    "raw: a cursor set back": Fault(
        RAW,
        f"update {RAW} set updated_at = timestamp '2024-01-01 00:00:00' "
        "where id = 2 and _cq_batch = 2",
        "cursor_plausible",
    ),
    "raw: another payload at the same cursor": Fault(
        RAW,
        copied("id = 3", _cq_batch="4", _cq_seq="9", payload="'other'", _cq_row_hash="5"),
        "no_cursor_ties",
    ),
    "raw: the same row again": Fault(
        RAW, copied("id = 3", _cq_batch="4", _cq_seq="9"), "no_duplicates"
    ),
    "raw: the same row again, below the window": Fault(
        RAW,
        copied("id = 1 and _cq_batch = 1", _cq_batch="4", _cq_seq="9"),
        "no_duplicates",
    ),
    "raw: the same row twice in a batch": Fault(
        RAW, copied("id = 3", _cq_seq="9"), "no_duplicates"
    ),
    "state: a batch ahead": Fault(
        STATE,
        f"update {STATE} set value = replace(value, '\"batch\": 4', '\"batch\": 6')",
        STATE_PROOF,
    ),
    "state: a cursor ahead": Fault(
        STATE, f"update {STATE} set value = replace(value, '2025-01-05', '2025-03-01')", STATE_PROOF
    ),
    "state: no JSON": Fault(
        STATE, f"update {STATE} set value = 'x' where version = 4", STATE_PROOF
    ),
    "state: a cursor without a batch": Fault(
        STATE, f"update {STATE} set value = replace(value, '\"batch\"', '\"was\"')", STATE_PROOF
    ),
    "state: a version twice": Fault(
        STATE, f"insert into {STATE} select * from {STATE} where version = 2", STATE_PROOF
    ),
    "state: a version missing": Fault(STATE, f"delete from {STATE} where version = 2", STATE_PROOF),
    "state: emptied": Fault(STATE, f"delete from {STATE}", STATE_PROOF),
    "state: two batches behind": Fault(
        STATE, f"delete from {STATE} where version > 2", STATE_PROOF
    ),
    "ledger: a sync missing": Fault(SYNCS, f"delete from {SYNCS} where batch = 2", ACCOUNTED),
    "ledger: emptied": Fault(SYNCS, f"delete from {SYNCS}", ACCOUNTED),
    "ledger: a sync twice": Fault(
        SYNCS, f"insert into {SYNCS} select * from {SYNCS} where batch = 2", ACCOUNTED
    ),
    "ledger: another number of rows": Fault(
        SYNCS, f"update {SYNCS} set rows_appended = 9 where batch = 2", ACCOUNTED
    ),
    "ledger: a batch that never was": Fault(
        SYNCS, f"update {SYNCS} set batch = 7 where batch = 4", ACCOUNTED
    ),
    "ledger: a window that begins too late": Fault(
        SYNCS,
        f"update {SYNCS} set cursor_low = '2025-01-04 12:00:00' where batch = 4",
        "inclusive_cursor",
    ),
    "snapshot: a row deleted": Fault(LATEST, f"delete from {LATEST} where id = 3", LATEST_PROOF),
    "snapshot: emptied": Fault(LATEST, f"delete from {LATEST}", LATEST_PROOF),
    "snapshot: a payload forged": Fault(
        LATEST, f"update {LATEST} set payload = 'forged' where id = 3", LATEST_PROOF
    ),
    "snapshot: a row aged": Fault(
        LATEST, f"update {LATEST} set _cq_batch = 1 where id = 2", LATEST_PROOF
    ),
    "snapshot: a deleted row back": Fault(
        LATEST,
        f"insert into {LATEST} select * from {RAW} where id = 4 and _cq_batch = 1",
        LATEST_PROOF,
    ),
    "snapshot: a row twice": Fault(
        LATEST, f"insert into {LATEST} select * from {LATEST} where id = 3", "unique_key"
    ),
    "snapshot: a row of nobody": Fault(
        LATEST, f"update {LATEST} set id = null where id = 3", LATEST_PROOF
    ),
    "history: closed versions deleted": Fault(
        HISTORY, f"delete from {HISTORY} where not is_current", HISTORY_PROOF
    ),
    "history: emptied": Fault(HISTORY, f"delete from {HISTORY}", HISTORY_PROOF),
    "history: validities overlap": Fault(
        HISTORY,
        f"update {HISTORY} set valid_to = valid_to + interval 1 day where not is_current",
        HISTORY_PROOF,
    ),
    "history: a gap between validities": Fault(
        HISTORY,
        f"update {HISTORY} set valid_from = valid_from + interval 1 hour "
        "where id = 1 and is_current",
        HISTORY_PROOF,
    ),
    "history: two current versions": Fault(
        HISTORY, f"update {HISTORY} set is_current = true where id = 1", "unique_key"
    ),
    "history: a version twice": Fault(
        HISTORY,
        f"insert into {HISTORY} select * from {HISTORY} where id = 1 and not is_current",
        HISTORY_PROOF,
    ),
    "history: a closed version forged": Fault(
        HISTORY,
        f"update {HISTORY} set payload = 'forged' where id = 1 and not is_current",
        HISTORY_PROOF,
    ),
}
"""The faults, by a description."""
