{#- Finds the raw tables in the project's sources at run time, so that nobody has to list them here
    again. That leaves no edge in the graph, but the loader writes the tables before dbt begins. -#}
{%- set tables = strandline.keyed_sources() if execute and not flags.EMPTY else [] -%}
{%- if tables %}
{%- for table in tables %}
select
    {{ strandline.text_literal(table.source) }} as source_name,
    {{ strandline.text_literal(table.relation.schema) }} as schema_name,
    {{ strandline.text_literal(table.relation.identifier) }} as table_name,
    versions.raw_rows,
    versions.raw_keys,
    duplicates.redelivered_rows,
    duplicates.in_batch_duplicates,
    duplicates.conflicting_rows,
    versions.raw_rows - duplicates.redelivered_rows - duplicates.in_batch_duplicates as versions,
    versions.last_batch
from (
    select
        sum(rows_of_key) as raw_rows,
        count(*) as raw_keys,
        max(last_batch) as last_batch
    from (
        select
            count(*) as rows_of_key,
            max(_cq_batch) as last_batch
        from {{ table.relation }} as versions
        group by
            {%- for key in table.primary_key %}
            {{ strandline.quoted(key) }}{{ "," if not loop.last }}
            {%- endfor %}
    ) as keys
) as versions
cross join (
    select
        count_if(duplicate_kind = 'redelivery') as redelivered_rows,
        count_if(duplicate_kind = 'in_batch') as in_batch_duplicates,
        count_if(
            duplicate_kind = 'conflict'
            {%- if table.cursor_field %} and {{ strandline.quoted(table.cursor_field) }} is not null
            {%- else %} and false{% endif %}
        ) as conflicting_rows
    from (
        {{ strandline.duplicates(table.relation, table.primary_key, table.cursor_field) }}
    ) as duplicates
) as duplicates
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
    cast(null as bigint) as last_batch
where false
{%- endif %}
