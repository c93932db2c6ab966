{% macro newest_refresh(relation) -%}
    {{- return(adapter.dispatch("newest_refresh", "strandline")(relation)) -}}
{%- endmacro %}


{% macro spark__newest_refresh(relation) -%}
    {#-
        Whole generations: the one of the newest complete full refresh, and those after it. A view is asked long
        after dbt compiled it, and a refresh is in raw a moment before the ledger tells of it. So the query asks the
        ledger itself, and first: then raw has every refresh that the ledger tells of. The newest batch tells
        which generations count: a raw table that was dropped or rolled back begins below what the ledger has seen.
    -#}
    {%- do strandline.check_name(relation | string) -%}
    {%- set refreshes = strandline.complete_refreshes(relation, none, "newest_refresh(" ~ relation ~ ")") if execute else [] -%}
    {%- set conditions = [] -%}
    {%- set floor = strandline.refresh_floor(refreshes) -%}
    {%- set asked_later = model is defined and model.get("config", {}).get("materialized") in ("view", "ephemeral") -%}
    {%- if floor is not none and not asked_later -%}
        {#- Iceberg leaves out files for a constant only; a view would keep that of a table which is dropped later. -#}
        {%- do conditions.append(strandline.shown_from(floor)) -%}
    {%- endif -%}
    {%- set syncs = strandline.syncs_relation(relation.schema) if execute and relation.schema else none -%}
    select versions.*
    {%- if syncs is not none and strandline.exists(syncs) %}
    {%- set shared = strandline.sharers(relation) %}
    from (
        select
            *,
            array_max(filter(refreshes, generation -> generation <= newest)) as refreshed
        from (
            select
                {%- if shared %}
                source_name,
                {%- endif %}
                max_by(generation, batch) as newest,
                collect_set(generation) filter (where mode = 'full_refresh') as refreshes
            from {{ syncs }} as syncs
            where table_name = {{ strandline.text_literal(relation.identifier) }}
                and status in ('synced', 'recovered')
            {%- if shared %}
            group by source_name
            {%- endif %}
        ) as ledger
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
