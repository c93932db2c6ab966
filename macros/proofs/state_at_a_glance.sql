{% macro not_ahead_at_a_glance(raw, state, cursor) -%}
    {#-
        Whether a look shows that the state of a raw table is not ahead of it: there is one state, of a batch that raw
        has, with a cursor no later than the newest one in raw. The states are read first, then the data. Otherwise the
        test asks for itself, and its own rows decide.
    -#}
    {%- set told = strandline.only_state(raw, state) -%}
    {%- if told is none -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set cursor = cursor or told.cursor_field -%}
    {%- set type = strandline.column_type(raw, cursor or "") -%}
    {%- set compared = type and told.cursor is not none and told.cursor_field == cursor -%}
    {%- set newest_sql -%}
        select
            raw_batch >= {{ told.batch }}
            {%- if compared %}
            and {{ strandline.cursor_value(strandline.text_literal(told.cursor), type) }} <= raw_cursor
            {%- if type in ("date", "timestamp", "timestamp_ntz") %}
            -- a row dated in the future does not vouch for the state's cursor
            and not {{ strandline.dated_ahead("raw_cursor", type) }}
            {%- endif %}
            {%- endif %}
        from (
            select
                {%- if compared %}
                max({{ strandline.quoted(cursor) }}) as raw_cursor,
                {%- endif %}
                max(_cq_batch) as raw_batch,
                max(_cq_sync_time) as _cq_sync_time
            from {{ raw }} as versions
        ) as newest
    {%- endset -%}
    {{ return(run_query(newest_sql).columns[0].values()[0] == true) }}
{%- endmacro %}


{% macro not_behind_at_a_glance(raw, state) -%}
    {#-
        Whether a look shows that the state of a raw table is not behind it: there is one state, of the newest batch or a
        later one, and of the source that this batch came from.
    -#}
    {%- set told = strandline.only_state(raw, state) -%}
    {%- if told is none -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set snapshot = strandline.snapshot_in(strandline.properties_told(raw)) -%}
    {%- set commits = strandline.commits_told(raw, snapshot) -%}
    {%- set commit = commits.get(snapshot, {}) -%}
    {%- set source = commit.source or commits.get(commit.staged or "", {}).get("source") -%}
    {%- set head = strandline.head_told({"relation": raw, "snapshot": snapshot}) -%}
    {{ return(head is not none and told.batch >= head and told.source == source) }}
{%- endmacro %}


{% macro only_state(raw, state) -%}
    {#- The state of a raw table; none unless there is exactly one, with a batch, and a test may look at it. -#}
    {%- set properties = strandline.properties_told(raw) -%}
    {%- if strandline.snapshot_in(properties) is none or strandline.sharers_in(properties) or not strandline.may_look(raw) -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set states = strandline.states_told(state).get(raw.identifier, []) -%}
    {{ return(states[0] if states | length == 1 and states[0].batch is not none else none) }}
{%- endmacro %}


{% macro states_told(state) -%}
    {#-
        The newest states of each table in a state table, {table: [{source, batch, cursor, cursor_field}]}, read as the
        tests' own queries read them. Without a batch if the newest version of a state is there twice, or has none, or is
        no JSON object, or if its cursor has letters that SQL may have to write otherwise. Asked once an invocation.
    -#}
    {%- set known = strandline.remembered("states") -%}
    {%- set name = state | string -%}
    {%- if name not in known -%}
        {%- set states_sql -%}
            select to_json(struct(
                substring_index(key, '.', 1) as source,
                {{ strandline.state_table_name("key") }} as table,
                if(
                    not twice
                    and get_json_object(value, '$') is not null
                    and substring(ltrim(value), 1, 1) = '{'
                    and coalesce(get_json_object(value, '$.cursor'), '') rlike '^[ -~]*$',
                    try_cast(get_json_object(value, '$.batch') as bigint),
                    null
                ) as batch,
                get_json_object(value, '$.cursor') as cursor,
                get_json_object(value, '$.cursor_field') as cursor_field
            ))
            from (
                select
                    key,
                    max_by(value, coalesce(version, 0)) as value,
                    count(*) <> size(collect_set(coalesce(version, 0))) as twice
                from {{ state }} as state
                group by key
            ) as newest
        {%- endset -%}
        {%- set states = {} -%}
        {%- for row in run_query(states_sql) -%}
            {%- set told = fromjson(row[0]) -%}
            {%- do states.setdefault(told.get("table"), []).append({
                "source": told.get("source"),
                "batch": told.get("batch"),
                "cursor": told.get("cursor"),
                "cursor_field": told.get("cursor_field"),
            }) -%}
        {%- endfor -%}
        {%- do known.update({name: states}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}
