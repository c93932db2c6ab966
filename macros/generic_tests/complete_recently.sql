{% test complete_recently(model, within=24, tables=none, exclude_tables=none) %}
    {{ config(severity="warn", tags=["strandline"]) }}
    {{ strandline._complete_recently_sql(model, within, tables, exclude_tables)
        if strandline._is_testing() else strandline._nothing() }}
{% endtest %}


{% macro _complete_recently_sql(syncs, within, tables, exclude_tables) -%}
    {#- Checks each table for which a sync has recorded `complete_until`, and the tables in
        `tables`, except those in `exclude_tables`. Returns the tables whose latest value is too old
        or missing. -#}
    {%- set seconds = strandline._seconds_of(within, "complete_recently") -%}
    {%- set excluded = strandline._as_list(exclude_tables) -%}
    with complete as (
        select
            table_name,
            source_name,
            max_by(complete_until, started_at) filter (where complete_until is not null)
                as complete_until
        from {{ strandline._syncs(syncs) }} as syncs
        group by table_name, source_name
    )
    {%- for table in strandline._as_list(tables) if table not in excluded %}

    select
        {{ strandline._literal(table) }} as table_name,
        null as source_name,
        null as complete_until,
        'unknown: no sync of a table with this name has recorded complete_until' as problem
    where not exists (
        select 1
        from complete
        where table_name = {{ strandline._literal(table) }} and complete_until is not null
    )
    union all
    {%- endfor %}

    select
        table_name,
        source_name,
        complete_until,
        'the raw table may lack rows that were committed since complete_until' as problem
    from complete
    where complete_until < {{ strandline._seconds_ago(seconds) }}
    {%- for table in excluded %}
        and table_name <> {{ strandline._literal(table) }}
    {%- endfor %}
{%- endmacro %}
