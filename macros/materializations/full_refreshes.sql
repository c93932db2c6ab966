{% macro complete_refreshes(relation, head, owner) -%}
    {#-
        The complete full refreshes of a raw table up to a batch, oldest first: {batch, generation,
        began_at in microseconds, source of a shared table}. What a refresh did not find has vanished
        from the source. One is complete when the ledger says so; one that was interrupted hides nothing.
    -#}
    {%- if relation is string -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": delete_stale asks the ledger about a raw table, so it needs the table itself: "
            ~ "source('shop', 'orders') instead of a SELECT."
        ) }}
    {%- endif -%}
    {%- set syncs = strandline.syncs_relation(relation.schema) -%}
    {%- if load_relation(syncs) is none -%}
        {{ return([]) }}
    {%- endif -%}
    {%- set sharers = strandline.sharers(relation) -%}
    {%- set refreshes_sql -%}
        select
            batch,
            max(generation) as generation,
            unix_micros(min(started_at)) as began_at,
            max(source_name) as source_name
        from {{ syncs }} as syncs
        where table_name = {{ strandline.text_literal(relation.identifier) }}
            and mode = 'full_refresh'
            and status in ('synced', 'recovered')
            {%- if head is not none %}
            and batch <= {{ head }}
            {%- endif %}
        group by batch
        order by batch
    {%- endset -%}
    {%- set refreshes = [] -%}
    {%- for row in run_query(refreshes_sql) -%}
        {%- do refreshes.append({
            "batch": row[0] | int,
            "generation": row[1] | int,
            "began_at": row[2] | int,
            "source": row[3] if sharers else none,
        }) -%}
    {%- endfor -%}
    {{ return(refreshes) }}
{%- endmacro %}


{% macro model_sources() -%}
    {#- The raw tables that the model reads, as relations. -#}
    {%- set relations = [] -%}
    {%- for node in graph.sources.values() if node.unique_id in model.depends_on.nodes -%}
        {%- do relations.append(api.Relation.create(schema=node.schema, identifier=node.identifier)) -%}
    {%- endfor -%}
    {{ return(relations) }}
{%- endmacro %}


{% macro model_source(owner, purpose) -%}
    {%- set sources = strandline.model_sources() -%}
    {%- if sources | length != 1 -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ purpose ~ " asks about one raw table, but the model reads " ~ sources | length
            ~ " sources. Let it select from exactly one source()."
        ) }}
    {%- endif -%}
    {{ return(sources[0]) }}
{%- endmacro %}
