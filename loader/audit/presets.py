"""Describes the bookkeeping columns that other tools add to the tables that they load.

A preset names the columns that are not part of the source's rows, the columns that order the
versions of a row, and the columns that flag deleted or superseded rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

DELETED_WORDS = ("true", "t", "1", "d", "delete")
"""Texts with which a column flags a deleted row, in lower case."""


@dataclass(frozen=True)
class Preset:
    """The bookkeeping of one tool. All names of columns are in lower case.

    Attributes:
        columns: a regular expression for the names of bookkeeping columns.
        telling: the columns by which the tool is recognised; one of them is enough.
        newest_by: the columns that order the versions of a row, the most significant first.
        deleted: the columns that flag deleted rows. A row is deleted if one of them is true, a
            number other than 0, a time, or one of :data:`DELETED_WORDS`.
        superseded: columns that flag old versions, in the same way.
        current: columns that flag current versions, in the same way; other rows are old versions.
        keeps_versions: whether the tool's tables always contain old versions of rows.

    Example:
        >>> find_preset(["id", "_dlt_load_id", "_dlt_id"])[0]
        'dlt'
    """

    columns: str
    telling: tuple[str, ...]
    newest_by: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    current: tuple[str, ...] = ()
    keeps_versions: bool = False

    def is_bookkeeping(self, name: str) -> bool:
        """Returns whether the tool itself added a column."""
        return re.fullmatch(self.columns, name.lower()) is not None


PRESETS = {
    "airbyte": Preset(
        "_airbyte_.*|_ab_.*",
        ("_airbyte_raw_id", "_airbyte_ab_id", "_airbyte_extracted_at", "_airbyte_emitted_at"),
        (
            "_airbyte_generation_id",
            "_ab_cdc_lsn",
            "_ab_cdc_cursor",
            "_airbyte_extracted_at",
            "_airbyte_emitted_at",
        ),
        deleted=("_ab_cdc_deleted_at",),
    ),
    "cloudquery": Preset(
        "_cq_(id|parent_id|sync_time|source_name|sync_group_id|client_id)",
        ("_cq_id", "_cq_sync_group_id"),
        ("_cq_sync_time",),
    ),
    "debezium": Preset(
        "__(op|deleted|table|db|schema|lsn|txid|pos|file|row|ts_ms|ts_us|ts_ns|source_.*)",
        ("__op", "__deleted", "__lsn", "__source_ts_ms"),
        ("__source_ts_ms", "__ts_ms", "__lsn", "__file", "__pos", "__row"),
        deleted=("__deleted", "__op"),
    ),
    "dlt": Preset(
        "_dlt_.*",
        ("_dlt_load_id", "_dlt_id"),
        ("_dlt_load_id",),
        superseded=("_dlt_valid_to",),
    ),
    "fivetran": Preset(
        "_fivetran_.*",
        ("_fivetran_synced", "_fivetran_id"),
        ("_fivetran_synced",),
        deleted=("_fivetran_deleted",),
        current=("_fivetran_active",),
    ),
    "meltano": Preset(
        "_sdc_.*",
        ("_sdc_extracted_at", "_sdc_batched_at", "_sdc_received_at", "_sdc_sequence"),
        ("_sdc_extracted_at", "_sdc_sequence", "_sdc_batched_at"),
        deleted=("_sdc_deleted_at",),
    ),
    "olake": Preset(
        "_olake_.*|_op_type|_cdc_timestamp",
        ("_olake_id", "_olake_timestamp"),
        ("_cdc_timestamp", "_olake_timestamp"),
        deleted=("_op_type",),
    ),
    "sling": Preset(
        "_sling_.*",
        ("_sling_loaded_at", "_sling_synced_at", "_sling_row_id", "_sling_stream_url"),
        ("_sling_synced_at", "_sling_loaded_at"),
        deleted=("_sling_deleted_at", "_sling_synced_op"),
    ),
    "strandline": Preset(
        "_cq_.*",
        ("_cq_batch", "_cq_generation"),
        ("_cq_generation", "_cq_batch", "_cq_seq"),
        deleted=("_cq_deleted",),
        keeps_versions=True,
    ),
}
"""Maps the name of each tool to its preset."""

NONE = Preset("(?!)", ())
"""The preset of a table without bookkeeping columns."""


def find_preset(columns: Sequence[str]) -> tuple[str, Preset]:
    """Recognises the tool that loaded a table. Returns ("", NONE) if no tool is recognised."""
    names = {name.lower() for name in columns}
    for name, preset in PRESETS.items():
        if names & set(preset.telling):
            return name, preset
    return "", NONE
