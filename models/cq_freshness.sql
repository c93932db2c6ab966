with attempts as (
    select
        *,
        status in ('synced', 'recovered', 'nothing new') as succeeded
    from {{ strandline._syncs(source("strandline", "_cq_syncs")) }} as syncs
),

ranked as (
    select
        *,
        max(case when succeeded then finished_at end) over (
            partition by source_name, table_name
        ) as last_synced_at,
        row_number() over (
            partition by source_name, table_name
            order by finished_at desc, batch desc nulls last
        ) = 1 as is_newest,
        succeeded and row_number() over (
            partition by source_name, table_name
            order by case when succeeded then 1 else 2 end, finished_at desc
        ) = 1 as is_newest_success
    from attempts
),

by_table as (
    select
        source_name,
        table_name,
        max(case when succeeded then batch end) as last_batch,
        max(case when succeeded and batch is not null then finished_at end) as last_batch_at,
        max(last_synced_at) as last_synced_at,
        max(case when is_newest then started_at end) as last_attempt_at,
        max(case when is_newest then status end) as last_status,
        max(case when is_newest then error end) as last_error,
        count(
            case
                when status = 'failed' and (last_synced_at is null or finished_at > last_synced_at)
                    then 1
            end
        ) as failures_since,
        max(case when is_newest_success then cursor_field end) as cursor_field,
        max(case when is_newest_success then cursor_type end) as cursor_type,
        max(case when is_newest_success then cursor_high end) as cursor,
        max_by(complete_until, started_at) filter (where complete_until is not null)
            as complete_until,
        sum(rows_below_cursor) as rows_below_cursor,
        sum(rows_at_cursor) as rows_at_cursor,
        sum(rows_cursor_unmoved) as rows_cursor_unmoved
    from ranked
    group by source_name, table_name
),

measured as (
    select
        *,
        -- A cursor that is a number or a text does not show how far it is behind.
        case
            when cursor_type in ('date', 'timestamp', 'timestamptz')
                then {{ strandline._cursor_value("cursor", "timestamp") }}
        end as cursor_at
    from by_table
),

verified as (
    {{ strandline._verified_tables(
        source("strandline", "_cq_reconciled"), source("strandline", "_cq_syncs")) }}
)

select
    measured.source_name,
    measured.table_name,
    measured.last_batch,
    measured.last_batch_at,
    measured.last_synced_at,
    measured.last_attempt_at,
    measured.last_status,
    measured.last_error,
    measured.failures_since,
    measured.cursor_field,
    measured.cursor,
    cast({{ strandline._seconds_between(
        "measured.cursor_at", "measured.last_synced_at") }} as bigint) as cursor_lag_seconds,
    cast({{ strandline._seconds_between(
        "measured.last_synced_at", "current_timestamp") }} as bigint) as seconds_since_sync,
    measured.complete_until,
    verified.verified_until,
    verified.columns_left_out,
    cast(measured.rows_below_cursor as bigint) as rows_below_cursor,
    cast(measured.rows_at_cursor as bigint) as rows_at_cursor,
    cast(measured.rows_cursor_unmoved as bigint) as rows_cursor_unmoved,
    current_timestamp as measured_at
from measured
left join verified
    on measured.source_name = verified.source_name
    and measured.table_name = verified.table_name
