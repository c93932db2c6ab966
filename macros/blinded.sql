{% macro blinded(raw, field, type) -%}
    {#-
        Whether a raw table holds a row that claims to be newer than any sync, by which no cursor would
        ever be ahead. Iceberg answers from its metadata.
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
        The cursors that became true with the batches of a raw table, as their commits tell: source_name, batch,
        cursor. Of the newest commit, should it have expired, compaction has kept what it said.
    -#}
    {%- set state = "coalesce(published.summary['strandline.state'], staged.summary['strandline.state'])" -%}
    {%- set sync = "coalesce(published.summary['strandline.sync'], staged.summary['strandline.sync'])" -%}
        select
            get_json_object(sync, '$.source_name') as source_name,
            cast(get_json_object(state, '$.batch') as bigint) as batch,
            get_json_object(state, '$.cursor') as cursor
        from (
            select {{ state }} as state, {{ sync }} as sync
            from {{ raw }}.snapshots as published
            left semi join {{ raw }}.history as history
                on published.snapshot_id = history.snapshot_id
                and history.is_current_ancestor
            left join {{ raw }}.snapshots as staged
                on published.summary['source-snapshot-id'] = cast(staged.snapshot_id as string)
            {%- for name, text in strandline.table_properties(raw).items() if name.startswith("strandline.newest") %}
            {%- set said = fromjson(text) %}
            union all
            select {{ strandline.text_literal(said.state) }}, {{ strandline.text_literal(tojson(said.sync or {})) }}
            {%- endfor %}
        ) as told
        where state is not null
{%- endmacro %}
