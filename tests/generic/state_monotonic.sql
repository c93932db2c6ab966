{% test state_monotonic(model) %}
    {{ config(severity="error") }}
    {%- if not execute or (model is not string and load_relation(model) is none) %}
        select cast(null as string) as key where false
    {%- else %}
    with versions as (
        select
            key,
            coalesce(version, 0) as version,
            count(*) as rows_of_version
        from {{ model }} as state
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
        -- pruned state begins at any version: only what lies between counts
        or version > previous_version + 1
    {%- endif %}
{% endtest %}
