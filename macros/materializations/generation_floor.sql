{% macro generation_floor(head, owner) -%}
    {#-
        The generation of the newest complete full refresh up to a batch: what only older
        generations hold has vanished from the source. A refresh is complete when the ledger says
        so; one that was interrupted hides nothing. none: hide nothing.
    -#}
    {%- set sources = [] -%}
    {%- for node in graph.sources.values() if node.unique_id in model.depends_on.nodes -%}
        {%- do sources.append(node) -%}
    {%- endfor -%}
    {%- if sources | length != 1 -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": delete_stale asks the ledger about one raw table, but the model reads " ~ sources | length
            ~ " sources. Let it select from exactly one source()."
        ) }}
    {%- endif -%}
    {%- set syncs = strandline.syncs_relation(sources[0].schema) -%}
    {%- if load_relation(syncs) is none or head is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set floor_sql -%}
        select max(generation)
        from {{ syncs }}
        where table_name = {{ strandline.text_literal(sources[0].identifier) }}
            and mode = 'full_refresh'
            and status in ('synced', 'recovered')
            and batch <= {{ head }}
    {%- endset -%}
    {%- set floor = run_query(floor_sql).columns[0].values()[0] -%}
    {{ return(floor | int if floor is not none else none) }}
{%- endmacro %}
