{% test reconciled_recently(model, within=24, min_share=1.0, tables=none) %}
    {{ config(severity="warn", tags=["strandline"]) }}
    {{ strandline._reconciled_recently_sql(model, within, min_share, tables)
        if strandline._is_testing() else strandline._nothing() }}
{% endtest %}


{% macro _reconciled_recently_sql(reconciled, within, min_share, tables) -%}
    {#- Checks each table that was ever compared or is listed in `tables`. With the default
        `min_share`, a table passes if its `verified_until` is recent. Unrepaired differences come
        from the latest comparison of each bucket; if the number of buckets has changed, only the
        buckets of the latest comparison are considered. -#}
    {%- set seconds = strandline._seconds_of(within, "reconciled_recently") -%}
    with verified as (
        {{ strandline._verified_tables(reconciled,
            strandline._own_table(reconciled.schema, "_cq_syncs"), seconds) }}
    ),

    newest as (
        select *
        from (
            select
                *,
                row_number() over (
                    partition by table_name, source_name, buckets, bucket
                    order by verified_at desc
                ) as age,
                first_value(buckets) over (
                    partition by table_name, source_name
                    order by verified_at desc
                ) as newest_buckets
            from {{ strandline._comparisons(reconciled) }} as reconciled
        ) as ranked
        where age = 1
            and buckets = newest_buckets
    )
    {%- for table in strandline._as_list(tables) %}

    select
        {{ strandline._literal(table) }} as table_name,
        null as source_name,
        null as bucket,
        0 as buckets_verified,
        null as buckets,
        null as verified_until,
        null as missed_updates,
        null as missed_rows,
        null as missed_deletes,
        'never reconciled: run `loader reconcile`' as problem
    where not exists (select 1 from verified where table_name = {{ strandline._literal(table) }})
    union all
    {%- endfor %}

    select
        table_name,
        source_name,
        null as bucket,
        buckets_verified,
        buckets,
        verified_until,
        null as missed_updates,
        null as missed_rows,
        null as missed_deletes,
        'not all buckets were verified in the last {{ within }} hours' as problem
    from verified
    where buckets_verified < {{ min_share }} * buckets
    union all
    select
        newest.table_name,
        newest.source_name,
        newest.bucket,
        verified.buckets_verified,
        newest.buckets,
        verified.verified_until,
        newest.missed_updates,
        newest.missed_rows,
        newest.missed_deletes,
        'differences that were not repaired: run `loader reconcile --repair`' as problem
    from newest
    inner join verified
        on newest.table_name = verified.table_name
        and newest.source_name = verified.source_name
    where not newest.repaired
        and newest.missed_updates + newest.missed_rows + newest.missed_deletes > 0
{%- endmacro %}


{% macro _seconds_ago(seconds) -%}
    current_timestamp - interval '{{ seconds }} seconds'
{%- endmacro %}
