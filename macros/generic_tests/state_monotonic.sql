{% test state_monotonic(model) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_state_monotonic", "strandline")(model) }}
{% endtest %}


{% macro spark__test_state_monotonic(model) -%}
    {%- if not strandline.testing() or strandline.no_state_expected(model) %}
        select cast(null as string) as key where false
    {%- elif model is not string and not strandline.exists(model) %}
    {{ strandline.missing_state(model) }}
    {%- else %}
    with versions as (
        select
            key,
            coalesce(version, 0) as version,
            count(*) as rows_of_version
        from {{ strandline.tested_rows(model) }} as state
        group by key, coalesce(version, 0)
    ),

    neighbours as (
        select
            *,
            lag(version) over (partition by key order by version) as previous_version
        from versions
    )

    select
        *,
        case
            when rows_of_version > 1 then 'several rows of one version'
            else 'versions are missing before this one'
        end as problem
    from neighbours
    where rows_of_version > 1
        -- pruned state may begin at any version: only gaps after that count
        or version > previous_version + 1
    {%- endif %}
{%- endmacro %}
