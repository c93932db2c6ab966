{% test inclusive_cursor(model) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {%- set syncs = strandline._records(model, "_cq_syncs") if strandline._is_testing()
        else model %}
    {%- if not strandline._is_testing() %}
        {{ strandline._nothing() }}
    {%- elif not strandline._exists(syncs) %}
        {{ strandline._missing_table(syncs, "`loader run` or `loader state rebuild` creates the "
            ~ "ledger") }}
    {%- else %}
        {{ strandline._inclusive_cursor_sql(syncs) }}
    {%- endif %}
{% endtest %}


{% macro _inclusive_cursor_sql(syncs) -%}
    {#- Checks that each incremental window begins at or below the previously stored cursor. Ignores
        a gap if a later run has read the whole gap. -#}
    with successful as (
        select *
        from {{ syncs }} as syncs
        where status in ('synced', 'recovered', 'nothing new')
    ),

    windows as (
        select
            *,
            lag(cursor_high) over history as stored_cursor,
            lag(cursor_field) over history as stored_cursor_field,
            lag(run_id) over history as stored_by_run_id,
            max(batch) over history as batch_so_far,
            last_value(cursor_field) over (
                partition by table_name, source_name
                order by started_at, batch nulls last, finished_at
                rows between unbounded preceding and unbounded following
            ) as newest_cursor_field
        from successful
        window history as (
            partition by table_name, source_name
            order by started_at, batch nulls last, finished_at
        )
    ),

    gaps as (
        select *
        from windows
        where mode = 'incremental'
            and cursor_field is not distinct from stored_cursor_field
            and cursor_field is not distinct from newest_cursor_field
            and cursor_low is not null
            and stored_cursor is not null
            -- If a text is not a value of the cursor's type, the comparison is null, and the window
            -- is reported.
            and not coalesce({{ strandline._cursor_at_most(
            "cursor_low", "stored_cursor", "cursor_type") }}, false)
    ),

    -- The range that each run has read completely. The chunks of a backfill are adjacent, so they
    -- form one range.
    ranges as (
        select
            table_name,
            source_name,
            run_id,
            mode,
            min(started_at) as started_at,
            max(case when mode = 'full_refresh' or mode = 'incremental' and cursor_low is null
                then 1 else 0 end) = 1 as everything,
            min(read_from) as read_from,
            case when mode = 'backfill' then max(read_to) end as read_to
        from successful
        group by table_name, source_name, run_id, mode
    )

    select
        source_name,
        table_name,
        run_id,
        batch,
        started_at,
        cursor_field,
        cursor_low,
        stored_cursor,
        stored_by_run_id,
        'the window begins after the cursor that was stored before it' as problem
    from gaps
    where not exists (
        select 1
        from ranges
        where ranges.source_name = gaps.source_name
            and ranges.table_name = gaps.table_name
            and ranges.started_at > gaps.started_at
            and (
                ranges.everything
                or coalesce({{ strandline._cursor_at_most(
                "ranges.read_from", "gaps.stored_cursor", "gaps.cursor_type") }}, false)
                    and (
                        ranges.mode <> 'backfill'
                        or coalesce({{ strandline._cursor_at_most(
                        "gaps.cursor_low", "ranges.read_to", "gaps.cursor_type") }}, false)
                    )
            )
    )
        and {{ strandline._no_acknowledgement(syncs.schema, "inclusive_cursor", "coalesce(batch, "
        ~ "batch_so_far)") }}
{%- endmacro %}


{% macro _cursor_at_most(left, right, type) -%}
    {#- Compares two stored cursors as values of the type in the ledger's `cursor_type` column. -#}
    case
        when {{ type }} = 'integer' then try_cast({{ left }} as decimal(38, 0))
            <= try_cast({{ right }} as decimal(38, 0))
        when {{ type }} = 'decimal' then try_cast({{ left }} as decimal(38, 18))
            <= try_cast({{ right }} as decimal(38, 18))
        when {{ type }} = 'double' then try_cast({{ left }} as double)
            <= try_cast({{ right }} as double)
        when {{ type }} in ('date', 'timestamp', 'timestamptz')
            then try_cast({{ left }} as timestamp) <= try_cast({{ right }} as timestamp)
        else {{ left }} <= {{ right }}
    end
{%- endmacro %}


{% macro _no_acknowledgement(schema, test, batch, snapshot=none) -%}
    {#- Returns the condition of _not_acknowledged() for a test that checks all tables of a
        schema. -#}
    {%- set conditions = ["true"] -%}
    {%- for table in strandline._ledger_tables(schema) -%}
        {%- set incidents = strandline._acknowledged(table.relation, test, test) -%}
        {%- if incidents -%}
            {%- do conditions.append(
                "(table_name <> " ~ strandline._literal(table.name) ~ " or "
                ~ strandline._not_acknowledged(incidents, batch, snapshot) ~ ")"
            ) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(conditions | join(" and ")) }}
{%- endmacro %}
