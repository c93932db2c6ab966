{{ config(enabled=false) }}

{#- The entries of config.meta.strandline.acknowledged in the project's sources and models. -#}
{%- set nodes = graph.sources.values() | list + graph.nodes.values() | list if execute else [] -%}
{%- set rows = [] -%}
{%- for node in nodes | sort(attribute="unique_id") -%}
    {%- set table = node.get("identifier") or node.get("alias") or node.name -%}
    {%- for incident in strandline._acknowledgements(
        strandline._settings(node), node.schema ~ "." ~ table) -%}
        {%- for test in incident.tests -%}
            {%- do rows.append([
                node.get("source_name"), node.schema, table, test, incident.first, incident.last,
                    incident.snapshot,
                incident.who, incident.when, incident.why,
            ]) -%}
        {%- endfor -%}
    {%- endfor -%}
{%- endfor -%}
{%- set text = dbt.type_string() -%}
{%- set types = {
    "source_name": text, "schema_name": text, "table_name": text, "test": text,
    "first_batch": "bigint",
    "last_batch": "bigint", "snapshot_id": "bigint", "acknowledged_by": text,
    "acknowledged_on": text, "reason": text,
} -%}
{%- for row in rows or [[none] * 10] %}
select
    {%- for name, type in types.items() %}
    {%- set value = row[loop.index0] %}
    cast({{ "null" if value is none else strandline._literal(value) }} as {{ type }})
        as {{ name }}{{ "," if not loop.last }}
    {%- endfor %}
{%- if not rows %}
where false
{%- elif not loop.last %}
union all
{%- endif %}
{%- endfor %}
