{% macro duplicate_counts(table, before=none) -%}
    {#-
        A SELECT of one row of cq_duplicates: how often a raw table's rows repeat one another. `before` is that row
        from the previous build if the loader has only appended batches since: then only those are counted, and
        added to it.
    -#}
    {%- set rows = table.relation ~ (" version as of " ~ table.snapshot if table.snapshot else "") -%}
    {%- set low = before.last_batch if before is not none else none -%}
    {%- set asked = {
        "whole": before is none,
        "tables": [{"name": "", "proved_to": low, "again_low": 0, "again_high": 0}],
        "types": {table.cursor_field | lower: strandline.column_type(table.relation, table.cursor_field)}
            if before is not none and table.cursor_field else {},
    } -%}
    {%- set keys = strandline.key_list(table.primary_key) -%}
    {%- set new = strandline.asked_rows(asked, rows) -%}
    select
        versions.raw_rows,
        versions.raw_keys,
        duplicates.redelivered_rows,
        duplicates.in_batch_duplicates,
        duplicates.conflicting_rows,
        versions.last_batch
    from (
        select
            coalesce(sum(delivered), 0) as raw_rows,
            count_if(not known_before) as raw_keys,
            max(last_batch) as last_batch
        from (
            select
                sum(delivered) as delivered,
                max(known_before) as known_before,
                max(_cq_batch) as last_batch
            from (
                select
                    {{ keys }},
                    1L as delivered,
                    false as known_before,
                    _cq_batch
                from {{ new }} as versions
                {%- if before is not none %}
                union all
                select
                    {{ strandline.key_list(table.primary_key, "earlier") }},
                    0L,
                    true,
                    earlier._cq_batch
                from {{ rows }} as earlier
                left semi join {{ new }} as versions
                    on {{ strandline.same_key(table.primary_key, "earlier", "versions") }}
                where earlier._cq_batch <= {{ low }}
                {%- endif %}
            ) as versions
            group by {{ keys }}
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
            {{ strandline.duplicates(
                strandline.asked_keys(asked, rows, table.primary_key, table.cursor_field),
                table.primary_key,
                table.cursor_field
            ) }}
        ) as duplicates
        {%- if before is not none %}
        where _cq_batch > {{ low }}
        {%- endif %}
    ) as duplicates
{%- endmacro %}


{% macro counted_before(relation) -%}
    {#-
        The rows of cq_duplicates from its previous build, by the raw table: {schema.table: row}. Empty if it is
        built for the first time, with --full-refresh, or if an earlier version of this package built it.
    -#}
    {%- set rows = {} -%}
    {%- if execute and not should_full_refresh() and not strandline.compiles_only() and strandline.exists(relation)
        and strandline.has_columns(relation, ["raw_snapshot_id", "settings"]) -%}
        {%- for row in run_query("select to_json(struct(*), map('ignoreNullFields', 'false')) from " ~ relation ~ " as counted") -%}
            {%- set said = fromjson(row[0]) -%}
            {%- do rows.update({said.schema_name ~ "." ~ said.table_name: said}) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(rows) }}
{%- endmacro %}


{% macro still_counts(table, before) -%}
    {#- Whether what was counted before is still right, apart from batches that the loader has appended since. -#}
    {%- if before is none or before.last_batch is none or before.raw_snapshot_id is none or not table.snapshot
        or before.settings != table.settings -%}
        {{ return(false) }}
    {%- endif -%}
    {{ return(strandline.broken_lineage(
        table, {"raw_snapshot_id": before.raw_snapshot_id, "batch": before.last_batch}
    ) is none) }}
{%- endmacro %}
