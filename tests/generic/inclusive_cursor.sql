{% test inclusive_cursor(model, cursor_field=none) %}
    {{ config(severity="error") }}
    {%- set raw = strandline.tested_table(model, "inclusive_cursor") %}
    {%- set syncs = strandline.syncs_relation(raw.schema) %}
    {%- if not execute or load_relation(syncs) is none %}
        select cast(null as string) as table_name where false
    {%- else %}
    {%- set table_name = strandline.text_literal(raw.identifier) %}
    {%- set field = strandline.tested_cursor(raw, cursor_field) or strandline.synced_cursor(syncs, raw.identifier) %}
    {%- set type = strandline.column_type(raw, field or "") or "string" %}
    with successful as (
        select *
        from {{ syncs }}
        where table_name = {{ table_name }}
            and status in ('synced', 'recovered', 'nothing new')
    ),

    windows as (
        select
            *,
            lag(cursor_high) over history as stored_cursor,
            lag(cursor_field) over history as stored_cursor_field,
            lag(run_id) over history as stored_by_run_id
        from successful
        window history as (
            partition by source_name
            order by started_at, batch nulls last, finished_at
        )
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
    from windows
    where mode = 'incremental'
        and cursor_field <=> stored_cursor_field
        and cursor_field <=> {{ strandline.text_literal(field) if field else "cast(null as string)" }}
        and cursor_low is not null
        and stored_cursor is not null
        -- a text that is no {{ type }} compares as null: not provably inclusive
        and not coalesce(cast(cursor_low as {{ type }}) <= cast(stored_cursor as {{ type }}), false)
    {%- endif %}
{% endtest %}
