{% macro keyed_sources() -%}
    {#-
        The existing raw tables that the project declares with a key (config.meta.strandline.primary_key):
        [{source, relation, primary_key, cursor_field}].
    -#}
    {%- set tables = [] -%}
    {%- set present = {} -%}
    {%- for node in graph.sources.values() | sort(attribute="unique_id") -%}
        {%- set settings = (node.config.get("meta") or {}).get("strandline") or {} -%}
        {%- if settings.get("primary_key") -%}
            {%- set relation = strandline.exactly(node.schema, node.identifier) -%}
            {%- if node.schema not in present -%}
                {%- do present.update({node.schema: strandline.tables_in(node.schema)}) -%}
            {%- endif -%}
            {%- if relation.identifier | lower in present[node.schema] -%}
                {%- do tables.append({
                    "source": node.source_name,
                    "relation": relation,
                    "primary_key": strandline.key_columns(
                        settings.primary_key, "Source " ~ node.schema ~ "." ~ node.identifier
                    ),
                    "cursor_field": settings.get("cursor_field"),
                }) -%}
            {%- endif -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(tables) }}
{%- endmacro %}


{% macro tables_in(schema) -%}
    {#- The names of a schema's tables in lower case; an empty list if there is no such schema. -#}
    {{ return(strandline.names_in(schema, "tables") | map("lower") | list) }}
{%- endmacro %}


{% macro names_in(schema, kind) -%}
    {#- `kind` is `tables` or `views`. In an Iceberg catalog, no view is among the tables. -#}
    {%- set within, dot, name = schema.rpartition(".") -%}
    {%- set found = run_query(
        "show schemas" ~ (" in " ~ strandline.quoted_path(within) if within else "") ~ " like " ~ strandline.text_literal(name)
    ) -%}
    {%- if name | lower not in found.columns[0].values() | map("lower") | list -%}
        {{ return([]) }}
    {%- endif -%}
    {%- set names = [] -%}
    {%- for row in run_query("show " ~ kind ~ " in " ~ strandline.quoted_path(schema)) -%}
        {%- do names.append(row[1]) -%}
    {%- endfor -%}
    {{ return(names) }}
{%- endmacro %}
