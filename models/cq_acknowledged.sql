{#- The entries of config.meta.strandline.acknowledged in the project's sources and models. -#}
{%- set nodes = graph.sources.values() | list + graph.nodes.values() | list if execute else [] -%}
{%- set rows = [] -%}
{%- for node in nodes | sort(attribute="unique_id") -%}
    {%- set settings = (node.config.get("meta") or {}).get("strandline") or {} -%}
    {%- set table = node.get("identifier") or node.get("alias") or node.name -%}
    {%- for one in strandline.acknowledged(settings, node.schema ~ "." ~ table) -%}
        {%- for test in one.tests -%}
            {%- do rows.append([
                node.get("source_name"), node.schema, table, test, one.first, one.last, one.snapshot, one.who, one.when, one.why,
            ]) -%}
        {%- endfor -%}
    {%- endfor -%}
{%- endfor -%}
{%- set types = {
    "source_name": "string", "schema_name": "string", "table_name": "string", "test": "string", "first_batch": "bigint",
    "last_batch": "bigint", "snapshot_id": "bigint", "acknowledged_by": "string", "acknowledged_on": "string", "reason": "string",
} -%}
{%- for row in rows or [[none] * 10] %}
select
    {%- for name, type in types.items() %}
    {%- set value = row[loop.index0] %}
    cast({{ "null" if value is none else strandline.text_literal(value) }} as {{ type }}) as {{ name }}{{ "," if not loop.last }}
    {%- endfor %}
{%- if not rows %}
where false
{%- elif not loop.last %}
union all
{%- endif %}
{%- endfor %}
