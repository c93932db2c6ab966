{{ config(enabled=false) }}

{#- The entries of config.meta.strandline.acknowledged in the project's sources and models. -#}
{%- set nodes = graph.sources.values() | list + graph.nodes.values() | list if execute else [] -%}
{%- set rows = [] -%}
{%- for node in nodes | sort(attribute="unique_id") -%}
    {%- set table = node.get("identifier") or node.get("alias") or node.name -%}
    {%- for incident in strandline._acknowledgements(
        strandline._settings(node), node.schema ~ "." ~ table) -%}
        {%- for test in incident.tests -%}
            {%- do rows.append([node.get("source_name"), node.schema, table, test, incident.first,
                incident.last, incident.snapshot, incident.who, incident.when, incident.why]) -%}
        {%- endfor -%}
    {%- endfor -%}
{%- endfor -%}
{{ strandline._literal_rows({
    "source_name": "string",
    "schema_name": "string",
    "table_name": "string",
    "test": "string",
    "first_batch": "bigint",
    "last_batch": "bigint",
    "snapshot_id": "bigint",
    "acknowledged_by": "string",
    "acknowledged_on": "string",
    "reason": "string",
}, rows) }}
