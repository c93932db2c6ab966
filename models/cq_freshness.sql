with attempts as (
    select
        *,
        status in ('synced', 'recovered', 'nothing new') as succeeded
    from {{ strandline._syncs(source("strandline", "_cq_syncs")) }} as syncs
),

successes as (
    select
        source_name,
        table_name,
        max(batch) over per_table as last_batch,
        max(case when batch is not null then finished_at end) over per_table as last_batch_at,
        max(finished_at) over per_table as last_synced_at,
        cursor_field,
        cursor_high as cursor,
        -- A cursor that is a number or a text does not show how far it is behind.
        case
            when cursor_type in ('date', 'timestamp', 'timestamptz')
                then {{ strandline._cursor_value("cursor_high", "timestamp") }}
        end as cursor_at,
        row_number() over (partition by source_name, table_name order by started_at desc) as age
    from attempts
    where succeeded
    window per_table as (partition by source_name, table_name)
),

newest_success as (
    select *
    from successes
    where age = 1
),

newest_attempt as (
    select
        *,
        row_number() over (partition by source_name, table_name order by started_at desc,
            batch desc nulls last) as age
    from attempts
),

totals as (
    select
        source_name,
        table_name,
        sum(rows_below_cursor) as rows_below_cursor,
        sum(rows_at_cursor) as rows_at_cursor,
        sum(rows_cursor_unmoved) as rows_cursor_unmoved,
        max_by(complete_until, started_at) filter (where complete_until is not null)
            as complete_until
    from attempts
    group by source_name, table_name
),

verified as (
    {{ strandline._verified_tables(
        source("strandline", "_cq_reconciled"), source("strandline", "_cq_syncs")) }}
),

failures as (
    select
        attempts.source_name,
        attempts.table_name,
        count(*) as failures_since
    from attempts
    left join newest_success
        on attempts.source_name = newest_success.source_name
        and attempts.table_name = newest_success.table_name
    where attempts.status = 'failed'
        and (newest_success.last_synced_at is null or attempts.started_at
        > newest_success.last_synced_at)
    group by attempts.source_name, attempts.table_name
)

select
    newest_attempt.source_name,
    newest_attempt.table_name,
    newest_success.last_batch,
    newest_success.last_batch_at,
    newest_success.last_synced_at,
    newest_attempt.started_at as last_attempt_at,
    newest_attempt.status as last_status,
    newest_attempt.error as last_error,
    coalesce(failures.failures_since, 0) as failures_since,
    newest_success.cursor_field,
    newest_success.cursor,
    cast({{ strandline._seconds_between(
        "newest_success.cursor_at", "newest_success.last_synced_at") }} as bigint)
        as cursor_lag_seconds,
    cast({{ strandline._seconds_between(
        "newest_success.last_synced_at", "current_timestamp") }} as bigint)
        as seconds_since_sync,
    totals.complete_until,
    verified.verified_until,
    verified.columns_left_out,
    cast(totals.rows_below_cursor as bigint) as rows_below_cursor,
    cast(totals.rows_at_cursor as bigint) as rows_at_cursor,
    cast(totals.rows_cursor_unmoved as bigint) as rows_cursor_unmoved,
    current_timestamp as measured_at
from newest_attempt
inner join totals
    on newest_attempt.source_name = totals.source_name
    and newest_attempt.table_name = totals.table_name
left join newest_success
    on newest_attempt.source_name = newest_success.source_name
    and newest_attempt.table_name = newest_success.table_name
left join verified
    on newest_attempt.source_name = verified.source_name
    and newest_attempt.table_name = verified.table_name
left join failures
    on newest_attempt.source_name = failures.source_name
    and newest_attempt.table_name = failures.table_name
where newest_attempt.age = 1
