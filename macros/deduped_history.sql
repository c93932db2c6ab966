{% macro deduped_history(relation, unique_key, cursor_field=none, as_of=none,
    delete_stale=false) -%}
    {%- set given = strandline._given_versions(
        "deduped_history", relation, unique_key, as_of, delete_stale) -%}
    {%- set columns = strandline._columns(relation).values() | map(attribute="name") | list
        if given.refreshes else [] -%}
    {{- strandline._history_sql(
        strandline._with_vanished(given.versions, given.refreshes, columns, given.key), given.key,
        cursor_field
    ) -}}
{%- endmacro %}


{% macro _history_sql(versions, key, cursor_field, union=false, shown=none) -%}
    {#- Orders the versions of each key and removes repeated ones. A version is valid until the next
        version begins. If a version has a later time than a newer version of its key, both begin at
        the earlier of the two times, and the older version is never valid. Therefore valid_from
        never decreases within a key, and any time falls into at most one version. The times
        of repeated versions are included, so that a late version can only decrease valid_from.
        The row is one struct, so that Spark sorts fewer columns and MAP columns are supported. -#}
    {%- set keys = [] -%}
    {%- for name in key -%}
        {%- do keys.append("_cq_key_" ~ loop.index) -%}
    {%- endfor -%}
    {%- set of_key = "partition by " ~ keys | join(", ") ~ " order by place" -%}
    select *
    from (
        select
            version.*,
            valid_from,
            valid_to,
            valid_to is null as is_current
        from (
            select
                version,
                valid_from,
                lead(valid_from) over ({{ of_key }}) as valid_to
            from (
                select
                    *,
                    content is not distinct from lag(content) over ({{ of_key }}) as repeated,
                    min(changed_at) over (
                        {{ of_key }} desc
                        rows between unbounded preceding and current row
                    ) as valid_from
                from (
                    select
                        {%- for name in key %}
                        {{ strandline._quote(name) }} as {{ keys[loop.index0] }},
                        {%- endfor %}
                        {{ strandline.version_order(cursor_field, union=union) }} as place,
                        {{ strandline._changed_at(cursor_field) }} as changed_at,
                        (
                            coalesce(_cq_deleted, false),
                            case when not coalesce(_cq_deleted, false) then _cq_row_hash end
                        ) as content,
                        {{ strandline._whole_row("_cq_version") }} as version
                    from {{ versions }} as _cq_version
                ) as keyed
            ) as dated
            where not repeated
        ) as closed
    ) as shown
    where not coalesce(_cq_deleted, false)
    {%- if shown %}
        and ({{ shown }})
    {%- endif %}
{%- endmacro %}


{% macro _changed_at(cursor_field) -%}
    {#- Returns the time of a version. This is the cursor if it is a time, otherwise the start of
        the sync that read the version. -#}
    {{ "coalesce(" ~ strandline._instant(strandline._quote(cursor_field)) ~ ", _cq_sync_time)"
        if cursor_field else "_cq_sync_time" }}
{%- endmacro %}


{% macro _with_vanished(versions, refreshes, columns, key) -%}
    {#- Adds a tombstone for each key that a complete full refresh did not find. The tombstone has
        the `_cq_generation` of the refresh and a null cursor, so every version that arrives after
        the refresh is newer than the tombstone. -#}
    {%- if not refreshes -%}
        {{ return(versions) }}
    {%- endif -%}
    {%- set keys = key | map("lower") | list -%}
    (
        select {{ strandline._column_list(columns) }}
        from {{ versions }} as delivered
        {%- for refresh in refreshes %}
        {%- set values = {
            "_cq_batch": "cast(" ~ refresh.batch ~ " as bigint)",
            "_cq_generation": "cast(" ~ refresh.generation ~ " as bigint)",
            "_cq_seq": "cast(-1 as bigint)",
            "_cq_deleted": "true",
            "_cq_sync_time": strandline._from_micros(refresh.began_at),
            "_cq_table": strandline._literal(refresh.table) if refresh.get("table") else "null",
            "_cq_table_rank": "max(_cq_table_rank)",
        } %}
        union all
        select
            {%- for column in columns %}
            {{ strandline._quote(column) if column | lower in keys
                else values.get(column | lower, "null") }} as {{ strandline._quote(column) }}
            {{- "," if not loop.last }}
            {%- endfor %}
        from {{ versions }} as delivered
        where _cq_batch <= {{ refresh.batch }}
        {%- if refresh.get("source") %}
            and _cq_source_name = {{ strandline._literal(refresh.source) }}
        {%- endif %}
        {%- if refresh.get("table") %}
            and _cq_table = {{ strandline._literal(refresh.table) }}
        {%- endif %}
        group by {{ strandline._column_list(key) }}
        having max(_cq_batch) < {{ refresh.batch }}
        {%- endfor %}
    )
{%- endmacro %}
