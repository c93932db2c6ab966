with attempts as (
    select
        *,
        status in ('synced', 'recovered', 'nothing new') as succeeded
    from {{ ref("cq_sync_log") }}
),

successes as (
    select
        source_name,
        table_name,
        max(batch) as last_batch,
        max(if(batch is not null, finished_at, null)) as last_batch_at,
        max(finished_at) as last_synced_at,
        max_by(
            struct(
                cursor_field,
                cursor_high as cursor,
                -- a number or a string is not a time: it does not say how far behind the cursor is
                if(
                    cursor_type in ('date', 'timestamp', 'timestamptz'),
                    {{ strandline.cursor_value("cursor_high", "timestamp") }},
                    null
                ) as at
            ),
            started_at
        ) as stored
    from attempts
    where succeeded
    group by source_name, table_name
),

tables as (
    select
        attempts.source_name,
        attempts.table_name,
        max(attempts.started_at) as last_attempt_at,
        max_by(struct(attempts.status, attempts.error), attempts.started_at) as last_attempt,
        count_if(
            attempts.status = 'failed'
            and (successes.last_synced_at is null or attempts.started_at > successes.last_synced_at)
        ) as failures_since
    from attempts
    left join successes
        on attempts.source_name = successes.source_name
        and attempts.table_name = successes.table_name
    group by attempts.source_name, attempts.table_name
)

select
    tables.source_name,
    tables.table_name,
    successes.last_batch,
    successes.last_batch_at,
    successes.last_synced_at,
    tables.last_attempt_at,
    tables.last_attempt.status as last_status,
    tables.last_attempt.error as last_error,
    tables.failures_since,
    successes.stored.cursor_field,
    successes.stored.cursor,
    timestampdiff(second, successes.stored.at, successes.last_synced_at) as cursor_lag_seconds,
    timestampdiff(second, successes.last_synced_at, current_timestamp()) as seconds_since_sync,
    current_timestamp() as measured_at
from tables
left join successes
    on tables.source_name = successes.source_name
    and tables.table_name = successes.table_name
