{% macro complete_until(relation) -%}
    {#- Returns an SQL expression that reads the ledger when the model is queried. A table that a
        deduped_ materialization has built contains only the batches of its watermark, so syncs that
        ended after the next batch began do not count. Each raw table, and each source of a shared
        table, must have a value, because rows may be missing from a table or source without a
        value. -#}
    {%- set owner = "complete_until(" ~ relation ~ ")" -%}
    {%- if not execute or strandline._ledger_of(relation, owner) is none
        or not strandline._exists(relation) -%}
    cast(null as timestamp)
    {%- else -%}
    (
        select case when count(*) = count(complete_until) then min(complete_until) end
        from (
            {%- for table in strandline._complete_tables(relation, owner) %}
            {{ strandline._complete_until_sql(table) }}
            {{- "\n            union all" if not loop.last }}
            {%- endfor %}
        ) as newest
    )
    {%- endif -%}
{%- endmacro %}


{% macro _complete_tables(relation, owner) -%}
    {#- Returns the raw tables whose rows a table contains: [{name, batch}]. `batch` is the last
        batch of the raw table that the table contains, or none for a raw table itself, which is
        the `relation`. -#}
    {%- set mark = strandline._watermark(relation) if target.type == "spark" else none -%}
    {%- if mark is none -%}
        {%- for node in graph.nodes.values() if node.resource_type == "model"
            and strandline._table_name(strandline._node_relation(node)) == strandline._table_name(
                relation) -%}
            {{ exceptions.raise_compiler_error(
                owner ~ ": this model does not record which syncs it contains. Pass a raw table, "
                ~ "source('shop', 'orders'), or its latest table, ref('orders_latest')."
            ) }}
        {%- endfor -%}
        {{ return([{"relation": relation, "batch": none}]) }}
    {%- endif -%}
    {{ return(mark.tables) }}
{%- endmacro %}


{% macro _complete_until_sql(table) -%}
    {%- set relation = table.get("relation") or strandline._relation_of(table.name) -%}
    {%- set syncs = strandline._ledger_of(relation, "complete_until()") -%}
    {%- if not strandline._exists(syncs) -%}
            select cast(null as timestamp) as complete_until
    {%- else -%}
    {%- set shared = strandline._sources_of(strandline._properties(relation)) -%}
            select
                max_by(complete_until, started_at) filter (
                    where complete_until is not null
                    {%- if table.batch is not none %}
                        and (next_began_at is null or finished_at <= next_began_at)
                    {%- endif %}
                ) as complete_until
            from (
                select
                    *
                    {%- if table.batch is not none %},
                    min(case when batch > {{ table.batch }} then started_at end) over (
                        {{- "partition by source_name" if shared }}) as next_began_at
                    {%- endif %}
                from {{ syncs }} as ledger
                where table_name = {{ strandline._literal(relation.identifier) }}
            ) as syncs
            {%- if shared %}
            group by source_name
            {%- endif %}
    {%- endif -%}
{%- endmacro %}
