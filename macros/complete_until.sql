{% macro complete_until(relation) -%}
    {{- return(adapter.dispatch("complete_until", "strandline")(relation)) -}}
{%- endmacro %}


{% macro default__complete_until(relation) -%}
    {#-
        Returns an SQL expression that reads the ledger when the model is queried. Each source of a
        shared table must have a value, because rows of the other sources may be missing.
    -#}
    {%- set syncs = strandline._ledger_of(relation, "complete_until(" ~ relation ~ ")") if execute
        else none -%}
    {%- if syncs is none or not strandline._exists(syncs) or not strandline._exists(relation) -%}
    cast(null as timestamp)
    {%- else -%}
    {%- set shared = strandline._sources_of(strandline._properties(relation))
        if target.type == "spark" else [] -%}
    (
        select case when count(*) = count(complete_until) then min(complete_until) end
        from (
            select
                max_by(complete_until, started_at) filter (where complete_until is not null)
                    as complete_until
            from {{ syncs }} as syncs
            where table_name = {{ strandline._literal(relation.identifier) }}
            {%- if shared %}
            group by source_name
            {%- endif %}
        ) as newest
    )
    {%- endif -%}
{%- endmacro %}
