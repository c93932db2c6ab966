{% test volume_plausible(model, factor=3, days=28, min_days=7, min_rows=100,
    exclude_tables=none) %}
    {{ config(severity="warn", tags=["strandline"]) }}
    {{ strandline._volume_plausible_sql(model, factor, days, min_days, min_rows, exclude_tables)
        if strandline._is_testing() else strandline._nothing() }}
{% endtest %}


{% macro _volume_plausible_sql(syncs, factor, days, min_days, min_rows, exclude_tables) -%}
    {#- Compares the number of rows appended to each table on its last complete day with the numbers
        on the days before. Days without a successful sync and the day of the first load are
        ignored. -#}
    {%- for name, value, least in [("factor", factor, 1), ("days", days, 1),
        ("min_days", min_days, 1), ("min_rows", min_rows, 0)] if value is not number or value < least -%}
        {{ exceptions.raise_compiler_error(
            "volume_plausible: " ~ name ~ " is " ~ (value | tojson)
            ~ ". Set it to at least " ~ least
        ) }}
    {%- endfor -%}
    with daily as (
        select
            source_name,
            table_name,
            cast(started_at as date) as day,
            sum(coalesce(rows_appended, 0)) as rows_appended
        from {{ strandline._syncs(syncs) }} as syncs
        where status in ('synced', 'recovered', 'nothing new')
            and mode in ('incremental', 'cdc')
        group by source_name, table_name, cast(started_at as date)
    ),

    numbered as (
        select
            *,
            row_number() over (partition by source_name, table_name order by day desc) as age,
            min(day) over (partition by source_name, table_name) as first_day
        from daily
        where day < current_date
    ),

    compared as (
        select
            source_name,
            table_name,
            max(day) as day,
            max(rows_appended) filter (where age = 1) as rows_appended,
            min(rows_appended) filter (where age > 1) as lowest,
            max(rows_appended) filter (where age > 1) as highest,
            count(*) - 1 as days
        from numbered
        where age = 1
            or (age <= {{ days + 1 }} and day > first_day)
        group by source_name, table_name
    )

    select
        source_name,
        table_name,
        day,
        rows_appended,
        lowest,
        highest,
        days,
        case
            when rows_appended > highest then 'far more rows than on any of the days before'
            else 'far fewer rows than on any of the days before'
        end as problem
    from compared
    where days >= {{ min_days }}
        and (
            (rows_appended > {{ factor }} * highest and rows_appended >= {{ min_rows }})
            or ({{ factor }} * rows_appended < lowest and lowest >= {{ min_rows }})
        )
    {%- for table in strandline._as_list(exclude_tables) %}
        and table_name <> {{ strandline._literal(table) }}
    {%- endfor %}
{%- endmacro %}
