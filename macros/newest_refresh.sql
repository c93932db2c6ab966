{% macro newest_refresh(relation) -%}
    {#- Returns the rows of the newest complete full refresh and of later syncs, for a table without
        a key. The query itself reads the ledger, because a view is queried long after dbt compiled
        it. Rows from a refresh that is not yet in the ledger are hidden. If the raw table was
        dropped or rolled back, the ledger may contain refreshes with a higher generation than the
        newest batch. Such refreshes are ignored. -#}
    {%- set syncs = strandline._ledger_of(relation, "newest_refresh(" ~ relation ~ ")") if execute
        else none -%}
    {%- if syncs is none or not strandline._exists(syncs) -%}
    select versions.*
    from {{ relation }} as versions
    {%- else -%}
    {%- set shared = strandline._sources_of(strandline._properties(relation))
        if target.type == "spark" else [] -%}
    {%- set by_source = "source_name" if shared else "1" -%}
    select versions.*
    from {{ relation }} as versions
    left join (
        select
            {{ by_source }} as of_source,
            max(newest_generation) as newest,
            max(case when mode = 'full_refresh' and generation <= newest_generation
                then generation end) as refreshed
        from (
            {{ strandline._read_syncs(syncs, relation, by_source) }}
        ) as syncs
        group by {{ by_source }}
    ) as ledger
        on {{ "ledger.of_source = versions._cq_source_name" if shared else "true" }}
    where (ledger.refreshed is null or versions._cq_generation >= ledger.refreshed)
        and coalesce(versions._cq_generation <= ledger.newest, true)
    {%- endif -%}
{%- endmacro %}
