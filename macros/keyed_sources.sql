{% macro keyed_sources() -%}
    {#-
        The raw tables that the project declares with a key (config.meta.strandline.primary_key) and
        that exist: [{source, relation, primary_key, cursor_field}].
    -#}
    {%- set tables = [] -%}
    {%- for node in graph.sources.values() | sort(attribute="unique_id") -%}
        {%- set settings = (node.config.get("meta") or {}).get("strandline") or {} -%}
        {%- if settings.get("primary_key") -%}
            {%- set relation = api.Relation.create(
                schema=node.schema, identifier=node.identifier, quote_policy=node.quoting
            ) -%}
            {%- if load_relation(relation) is not none -%}
                {%- do tables.append({
                    "source": node.source_name,
                    "relation": relation,
                    "primary_key": strandline.key_columns(settings.primary_key, "Source " ~ relation),
                    "cursor_field": settings.get("cursor_field"),
                }) -%}
            {%- endif -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(tables) }}
{%- endmacro %}
