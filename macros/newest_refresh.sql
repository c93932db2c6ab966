{% macro newest_refresh(relation) -%}
    {{- return(adapter.dispatch("newest_refresh", "strandline")(relation)) -}}
{%- endmacro %}


{% macro spark__newest_refresh(relation) -%}
    {#-
        Whole generations: the one of the newest complete full refresh, and those after it. A view is asked long
        after dbt compiled it, and a refresh is in raw a moment before the ledger tells of it. So the query asks the
        ledger itself, and first: then raw has every refresh that the ledger tells of.
    -#}
    {%- set refreshes = strandline.complete_refreshes(relation, none, "newest_refresh(" ~ relation ~ ")") if execute else [] -%}
    {%- set conditions = [] -%}
    {%- set floor = strandline.refresh_floor(refreshes) -%}
    {%- if floor is not none -%}
        {#- Iceberg leaves out files for a constant only. -#}
        {%- do conditions.append(strandline.shown_from(floor)) -%}
    {%- endif -%}
    {%- set syncs = strandline.syncs_relation(relation.schema) if execute and relation.schema else none -%}
    select versions.*
    {%- if syncs is not none and strandline.exists(syncs) %}
    {%- set shared = strandline.sharers(relation) %}
    from (
        select
            {%- if shared %}
            source_name,
            {%- endif %}
            max(generation) as newest,
            max(generation) filter (where mode = 'full_refresh') as refreshed
        from {{ syncs }} as syncs
        where table_name = {{ strandline.text_literal(relation.identifier) }}
            and status in ('synced', 'recovered')
        {%- if shared %}
        group by source_name
        {%- endif %}
    ) as told
    {%- if shared %}
    right join {{ relation }} as versions on told.source_name = versions._cq_source_name
    {%- else %}
    cross join {{ relation }} as versions
    {%- endif %}
    {%- do conditions.append("(told.refreshed is null or versions._cq_generation >= told.refreshed)") %}
    {%- do conditions.append("coalesce(versions._cq_generation <= told.newest, true)") %}
    {%- else %}
    from {{ relation }} as versions
    {%- endif %}
    {%- if conditions %}
    where {{ conditions | join("\n        and ") }}
    {%- endif %}
{%- endmacro %}
