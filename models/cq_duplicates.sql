{#- Finds the raw tables in the project's sources at run time, so that nobody has to list them here
    again. That leaves no edge in the graph, but the loader writes the tables before dbt begins. -#}
{%- set tables = strandline.keyed_sources() if execute and not flags.EMPTY else [] -%}
{%- set counts = ["raw_rows", "raw_keys", "redelivered_rows", "in_batch_duplicates", "conflicting_rows"] -%}
{%- set counted = strandline.counted_before(this) if tables else {} -%}
{%- if tables %}
{%- for table in tables %}
{%- do table.update({
    "name": table.relation.schema ~ "." ~ table.relation.identifier,
    "snapshot": strandline.current_snapshot(table.relation),
    "settings": local_md5(tojson([table.source, table.primary_key, table.cursor_field])),
}) -%}
{%- set before = counted.get(table.name) -%}
{%- set before = before if strandline.still_counts(table, before) else none %}
select
    {{ strandline.text_literal(table.source) }} as source_name,
    {{ strandline.text_literal(table.relation.schema) }} as schema_name,
    {{ strandline.text_literal(table.relation.identifier) }} as table_name,
    {%- for name in counts %}
    new.{{ name }}{{ " + " ~ before[name] ~ "L as " ~ name if before is not none }},
    {%- endfor %}
    new.raw_rows - new.redelivered_rows - new.in_batch_duplicates
        {{- " + " ~ before.versions ~ "L" if before is not none }} as versions,
    {{ "coalesce(new.last_batch, " ~ before.last_batch ~ "L) as last_batch" if before is not none else "new.last_batch" }},
    cast({{ table.snapshot or "null" }} as bigint) as raw_snapshot_id,
    {{ strandline.text_literal(table.settings) }} as settings
from (
    {%- if before is not none and before.raw_snapshot_id | string == table.snapshot %}
    select
        {%- for name in counts %}
        0L as {{ name }},
        {%- endfor %}
        cast(null as bigint) as last_batch
    {%- else %}
    {{ strandline.duplicate_counts(table, before) }}
    {%- endif %}
) as new
{%- if not loop.last %}
union all
{%- endif %}
{%- endfor %}
{%- else %}
select
    cast(null as string) as source_name,
    cast(null as string) as schema_name,
    cast(null as string) as table_name,
    cast(null as bigint) as raw_rows,
    cast(null as bigint) as raw_keys,
    cast(null as bigint) as redelivered_rows,
    cast(null as bigint) as in_batch_duplicates,
    cast(null as bigint) as conflicting_rows,
    cast(null as bigint) as versions,
    cast(null as bigint) as last_batch,
    cast(null as bigint) as raw_snapshot_id,
    cast(null as string) as settings
where false
{%- endif %}
