{{ config(post_hook="{{ strandline._store_verdicts('_cq_syncs') }}") }}
{%- set syncs = source("strandline", "_cq_syncs") -%}
{%- if execute and (flags.EMPTY or not strandline._exists(syncs)) -%}
    {%- set text = dbt.type_string() -%}
    {%- set syncs = strandline._no_rows([
        ("run_id", text), ("source_name", text), ("table_name", text), ("batch", "bigint"),
        ("generation", "bigint"), ("mode", text), ("status", text), ("cursor_field", text),
        ("cursor_type", text), ("cursor_low", text), ("cursor_high", text),
        ("rows_read", "bigint"), ("rows_appended", "bigint"), ("rows_redelivered", "bigint"),
        ("rows_null_cursor", "bigint"), ("lookback", text), ("started_at", "timestamp"),
        ("finished_at", "timestamp"), ("snapshot_id", "bigint"), ("schema_changes", text),
        ("error", text), ("loader_version", text), ("rows_below_cursor", "bigint"),
        ("rows_at_cursor", "bigint"), ("rows_cursor_unmoved", "bigint"),
        ("complete_until", "timestamp"),
    ]) -%}
{%- endif -%}
with syncs as (
    select *
    from {{ syncs }} as ledger
)

select
    run_id,
    source_name,
    table_name,
    batch,
    generation,
    mode,
    status,
    cursor_field,
    cursor_type,
    cursor_low,
    cursor_high,
    rows_read,
    rows_appended,
    rows_redelivered,
    rows_null_cursor,
    rows_below_cursor,
    rows_at_cursor,
    rows_cursor_unmoved,
    complete_until,
    lookback,
    started_at,
    finished_at,
    {{ strandline._seconds_between("started_at", "finished_at") }} as seconds,
    snapshot_id,
    schema_changes,
    error,
    loader_version,
    row_number() over (
        partition by source_name, table_name
        order by started_at desc, batch desc nulls last
    ) = 1 as is_last_attempt
from syncs
