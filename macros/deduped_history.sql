{% macro deduped_history(relation, primary_key, cursor_field=none, as_of=none, delete_stale=false) -%}
    {{- return(adapter.dispatch("deduped_history", "strandline")(
        relation, primary_key, cursor_field, as_of, delete_stale
    )) -}}
{%- endmacro %}


{% macro spark__deduped_history(relation, primary_key, cursor_field, as_of, delete_stale) -%}
    {%- set owner = "deduped_history(" ~ relation ~ ")" -%}
    {%- set keys = strandline.key_columns(primary_key, owner) -%}
    {%- do strandline.check_shared_relation(relation, keys, owner) -%}
    {%- set versions = strandline.versions_as_of(relation, as_of, owner) -%}
    {%- if delete_stale and execute -%}
        {%- do strandline.check_ledger(relation, owner) -%}
        {%- set refreshes = strandline.complete_refreshes(relation, strandline.batch_at(relation, as_of), owner) -%}
        {%- set columns = adapter.get_columns_in_relation(relation) | map(attribute="name") | list -%}
        {%- set versions = strandline.with_vanished(versions, refreshes, columns, keys) -%}
    {%- endif -%}
    {{- strandline.history_sql(versions, keys, strandline.version_order(cursor_field), strandline.changed_at(cursor_field)) -}}
{%- endmacro %}


{% macro history_sql(versions, primary_key, place, changed_at, row_filter=none) -%}
    {#-
        The versions in order, without repetitions, each valid until the next begins. A version whose time is
        later than that of a newer version was never valid: it begins when the newer one does. So valid_from
        never decreases, and any time falls into at most one version of a key. Repetitions count for valid_from,
        too: then a late version can only move valid_from back, and a merge can tell when it does not.
    -#}
    {%- set keys = [] -%}
    {%- for key in primary_key -%}
        {%- do keys.append("_cq_key_" ~ loop.index) -%}
    {%- endfor -%}
    {%- if row_filter %}
    select *
    from (
    {%- endif %}
    select
        version.*,
        valid_from,
        valid_to,
        valid_to is null as is_current
    from (
        select
            version,
            valid_from,
            lead(valid_from) over (partition by {{ keys | join(", ") }} order by place) as valid_to
        from (
            select
                *,
                content <=> lag(content) over (partition by {{ keys | join(", ") }} order by place) as repeated,
                min(changed_at) over (
                    partition by {{ keys | join(", ") }}
                    order by place desc
                    rows between unbounded preceding and current row
                ) as valid_from
            from (
                select
                    {%- for key in primary_key %}
                    {{ strandline.quoted(key) }} as {{ keys[loop.index0] }},
                    {%- endfor %}
                    {{ place }} as place,
                    {{ changed_at }} as changed_at,
                    struct(
                        coalesce(_cq_deleted, false) as deleted,
                        if(_cq_deleted, null, _cq_row_hash) as row_hash
                    ) as content,
                    struct(*) as version
                from {{ versions }} as versions
            ) as keyed
        ) as dated
        where not repeated
    ) as closed
    where not coalesce(version._cq_deleted, false)
    {%- if row_filter %}
    ) as shown
    where {{ row_filter }}
    {%- endif %}
{%- endmacro %}


{% macro changed_at(cursor_field) -%}
    {#- A cursor that is a time dates the version; without one, the sync that brought it does. -#}
    {%- if not cursor_field -%}
        _cq_sync_time
    {%- else -%}
        {%- set cursor = strandline.quoted(cursor_field) -%}
        {#- Dates and wall-clock times are read as UTC, whatever the session's zone. -#}
        coalesce(
            case typeof({{ cursor }})
                when 'timestamp' then cast({{ cursor }} as timestamp)
                when 'date' then cast(concat(cast({{ cursor }} as string), ' 00:00:00Z') as timestamp)
                when 'timestamp_ntz' then cast(concat(cast({{ cursor }} as string), 'Z') as timestamp)
            end,
            _cq_sync_time
        )
    {%- endif -%}
{%- endmacro %}


{% macro with_vanished(versions, refreshes, columns, primary_key) -%}
    {#-
        The versions, and a tombstone for every key that a complete full refresh no longer found. It has
        the refresh's generation and no cursor, so that anything that comes later is newer.
    -#}
    {%- if not refreshes -%}
        {{ return(versions) }}
    {%- endif -%}
    {%- set keys = primary_key | map("lower") | list -%}
    (
        select
            {%- for column in columns %}
            {{ strandline.quoted(column) }}{{ "," if not loop.last }}
            {%- endfor %}
        from {{ versions }} as delivered
        {%- for refresh in refreshes %}
        union all
        select
            {%- for column in columns %}
            {%- set name = column | lower %}
            {%- if name in keys %}
            {{ strandline.quoted(column) }}
            {%- elif name == "_cq_batch" %}
            cast({{ refresh.batch }} as bigint)
            {%- elif name == "_cq_generation" %}
            cast({{ refresh.generation }} as bigint)
            {%- elif name == "_cq_seq" %}
            cast(-1 as bigint)
            {%- elif name == "_cq_deleted" %}
            true
            {%- elif name == "_cq_sync_time" %}
            timestamp_micros({{ refresh.began_at }})
            {%- elif name == "_cq_table" and refresh.get("table") %}
            {{ strandline.text_literal(refresh.table) }}
            {%- else %}
            null
            {%- endif %} as {{ strandline.quoted(column) }}{{ "," if not loop.last }}
            {%- endfor %}
        from {{ versions }} as delivered
        where _cq_batch <= {{ refresh.batch }}
        {%- if refresh.get("source") %}
            and _cq_source_name = {{ strandline.text_literal(refresh.source) }}
        {%- endif %}
        {%- if refresh.get("table") %}
            and _cq_table = {{ strandline.text_literal(refresh.table) }}
        {%- endif %}
        group by
            {%- for key in primary_key %}
            {{ strandline.quoted(key) }}{{ "," if not loop.last }}
            {%- endfor %}
        having max(_cq_batch) < {{ refresh.batch }}
        {%- endfor %}
    )
{%- endmacro %}
