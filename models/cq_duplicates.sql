{{ config(enabled=false) }}

{#- Counts the rows of the raw tables in the project's sources. The tables are found at run time, so
    dbt's graph has no edges from them to this model. None are needed, because the loader writes the
    tables before dbt starts. -#}
{%- set tables = [] -%}
{%- for node in graph.sources.values() | sort(attribute="unique_id") if execute
    and not flags.EMPTY -%}
    {%- set settings = strandline._settings(node) -%}
    {%- set relation = strandline._node_relation(node) -%}
    {%- if settings.unique_key and node.package_name != "strandline"
        and strandline._exists(relation) -%}
        {%- do tables.append({"source": node.source_name, "relation": relation,
            "settings": settings}) -%}
    {%- endif -%}
{%- endfor -%}
{%- if not tables %}
select *
from {{ strandline._no_rows({
    "string": "source_name schema_name table_name",
    "bigint": "raw_rows raw_keys redelivered_rows in_batch_duplicates conflicting_rows versions"
        ~ " last_batch",
}) }} as no_tables
{%- endif %}
{%- for table in tables %}
select
    {{ strandline._literal(table.source) }} as source_name,
    {{ strandline._literal(table.relation.schema) }} as schema_name,
    {{ strandline._literal(table.relation.identifier) }} as table_name,
    raw.raw_rows,
    raw.raw_keys,
    duplicates.redelivered_rows,
    duplicates.in_batch_duplicates,
    duplicates.conflicting_rows,
    raw.raw_rows - duplicates.redelivered_rows - duplicates.in_batch_duplicates as versions,
    raw.last_batch
from (
    select
        coalesce(sum(rows_of_key), 0) as raw_rows,
        count(*) as raw_keys,
        max(last_batch) as last_batch
    from (
        select
            count(*) as rows_of_key,
            max(_cq_batch) as last_batch
        from {{ table.relation }} as versions
        group by {{ strandline._column_list(table.settings.unique_key) }}
    ) as by_key
) as raw
cross join (
    select
        count(case when duplicate_kind = 'redelivery' then 1 end) as redelivered_rows,
        count(case when duplicate_kind = 'in_batch' then 1 end) as in_batch_duplicates,
        {%- set cursor = table.settings.get("cursor_field") %}
        {%- if cursor %}
        count(case when duplicate_kind = 'conflict' and {{ strandline._quote(
            cursor) }} is not null then 1 end) as conflicting_rows
        {%- else %}
        0 as conflicting_rows
        {%- endif %}
    from (
        {{ strandline.duplicates(table.relation, table.settings.unique_key, cursor) }}
    ) as found
) as duplicates
{{- "\nunion all" if not loop.last }}
{%- endfor %}
