{{ config(post_hook="{{ strandline._store_verdicts('_cq_syncs') }}") }}
with syncs as (
    select *
    from {{ strandline._syncs(source("strandline", "_cq_syncs")) }} as ledger
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
        order by finished_at desc, batch desc nulls last
    ) = 1 as is_last_attempt
from syncs
