{% macro blinded(raw, field, type) -%}
    {#-
        Whether a raw table holds a row with a cursor later than any sync. Compared with such a row, no state
        would ever be ahead. Iceberg answers the query from its metadata.
    -#}
    {%- if type not in ("date", "timestamp", "timestamp_ntz") -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set newest_sql -%}
        select cursor is not null and {{ strandline.dated_ahead("cursor", type) }}
        from (select max({{ strandline.quoted(field) }}) as cursor, max(_cq_sync_time) as _cq_sync_time from {{ raw }} as versions)
            as newest
    {%- endset -%}
    {{ return(run_query(newest_sql).columns[0].values()[0] == true) }}
{%- endmacro %}


{% macro committed_states(raw) -%}
    {#-
        The cursors that took effect with the batches of a raw table, from their commits: source_name, batch,
        cursor. If the newest commit has expired, compaction has kept a copy of what it recorded.
    -#}
        select
            get_json_object(sync, '$.source_name') as source_name,
            cast(get_json_object(state, '$.batch') as bigint) as batch,
            get_json_object(state, '$.cursor') as cursor
        from (
            select {{ strandline.commit_says("state") }} as state, {{ strandline.commit_says("sync") }} as sync
            {{ strandline.commit_chain(raw) }}
            {%- for name, text in strandline.table_properties(raw).items() if name.startswith("strandline.newest") %}
            {%- set said = fromjson(text) %}
            union all
            select {{ strandline.text_literal(said.state) }}, {{ strandline.text_literal(tojson(said.sync or {})) }}
            {%- endfor %}
        ) as told
        where state is not null
{%- endmacro %}
