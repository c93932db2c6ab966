{%- set syncs = source("strandline", "_cq_syncs") -%}
{%- if execute and (flags.EMPTY or not strandline.exists(syncs)) -%}
    {%- set syncs = "(" ~ strandline.no_syncs() ~ ")" -%}
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
    lookback,
    started_at,
    finished_at,
    cast((unix_micros(finished_at) - unix_micros(started_at)) / 1000000 as double) as seconds,
    snapshot_id,
    schema_changes,
    error,
    loader_version,
    row_number() over (
        partition by source_name, table_name
        order by started_at desc, batch desc nulls last
    ) = 1 as is_last_attempt
from syncs
