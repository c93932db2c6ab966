{% test inclusive_cursor(model, cursor_field=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_inclusive_cursor", "strandline")(model, cursor_field) }}
{% endtest %}


{% macro spark__test_inclusive_cursor(model, cursor_field) -%}
    {%- if not strandline.testing() %}
        select cast(null as string) as table_name where false
    {%- else %}
    {%- set raw = strandline.tested_table(model, "inclusive_cursor") %}
    {%- set syncs = strandline.syncs_relation(raw.schema) %}
    {%- if not strandline.exists(syncs) %}
    {{ strandline.missing_ledger(syncs) }}
    {%- else %}
    {%- set table_name = strandline.text_literal(raw.identifier) %}
    {%- set field = strandline.tested_cursor(raw, cursor_field) or strandline.synced_cursor(syncs, raw.identifier) %}
    {%- set type = strandline.column_type(raw, field or "") or "string" %}
    {%- set incidents = strandline.acknowledged_of(raw, "inclusive_cursor") %}
    {%- set says_what_was_read = strandline.column_type(syncs, "read_from") is not none %}
    {%- set gaps %}
    with successful as (
        select
            *,
            {{ strandline.cursor_value("cursor_low", type) }} as low,
            {{ strandline.cursor_value("cursor_high", type) }} as high,
            {%- if says_what_was_read %}
            {{ strandline.cursor_value("read_from", type) }} as whole_from,
            {{ strandline.cursor_value("read_to", type) }} as whole_to
            {%- else %}
            cast(null as {{ type }}) as whole_from,
            cast(null as {{ type }}) as whole_to
            {%- endif %}
        from {{ syncs }} as syncs
        where table_name = {{ table_name }}
            and status in ('synced', 'recovered', 'nothing new')
    ),

    windows as (
        select
            *,
            lag(high) over history as stored,
            lag(cursor_high) over history as stored_cursor,
            lag(cursor_field) over history as stored_cursor_field,
            lag(run_id) over history as stored_by_run_id,
            max(batch) over history as batch_by_then
        from successful
        window history as (
            partition by source_name
            order by started_at, batch nulls last, finished_at
        )
    ),

    gaps as (
        select *
        from windows
        where mode = 'incremental'
            and cursor_field <=> stored_cursor_field
            and cursor_field <=> {{ strandline.text_literal(field) if field else "cast(null as string)" }}
            and cursor_low is not null
            and stored_cursor is not null
            -- a string that is not a {{ type }} compares as null: not provably inclusive
            and not coalesce(low <= stored, false)
    )
    {%- endset %}
    {%- if strandline.may_look(raw) and strandline.no_rows_in(gaps ~ "\nselect * from gaps") %}
    {{ strandline.nothing_found("cast(null as string) as table_name") }}
    {%- else %}
    {{ gaps }},

    -- the range that each run read completely: the chunks of a backfill follow each other
    ranges as (
        select
            source_name,
            run_id,
            mode,
            min(started_at) as started_at,
            bool_or(mode = 'full_refresh' or mode = 'incremental' and cursor_low is null) as everything,
            min(whole_from) as whole_from,
            if(mode = 'backfill', max(whole_to), null) as whole_to
        from successful
        where cursor_field <=> {{ strandline.text_literal(field) if field else "cast(null as string)" }}
            or mode = 'full_refresh'
        group by source_name, run_id, mode
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
        'window begins after the cursor that was stored before it' as problem
    from gaps
    where not exists (
        select 1
        from ranges
        where ranges.source_name = gaps.source_name
            and ranges.started_at > gaps.started_at
            and (
                ranges.everything
                or ranges.whole_from <= gaps.stored
                    and (ranges.mode <> 'backfill' or ranges.whole_to >= gaps.low)
            )
    )
        and {{ strandline.not_acknowledged(incidents, "coalesce(batch, batch_by_then)") }}
    {%- endif %}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
