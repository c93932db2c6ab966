{% test state_consistent(model, grace_minutes=10, raw_schema=none) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {%- set state = strandline._records(model, "_cq_state") if strandline._is_testing()
        else model %}
    {%- if not strandline._is_testing() or not strandline._is_state_in_lake() %}
        {{ strandline._nothing() }}
    {%- elif not strandline._exists(state) %}
        {%- if strandline._tables_with_state(raw_schema or state.schema) %}
        {{ strandline._missing_table(
            state, "`loader run` or `loader state rebuild` creates it. If cursors are stored "
                ~ "elsewhere, set the variable "
            ~ "strandline__state_in_lake to false"
        ) }}
        {%- else %}
        {{ strandline._nothing() }}
        {%- endif %}
    {%- else %}
        {{ strandline._judge_states(state, "cq_state_current", grace_minutes, raw_schema).sql }}
    {%- endif %}
{% endtest %}


{% macro _is_state_in_lake() -%}
    {%- set settings = strandline._settings(strandline._own_source("_cq_state")) -%}
    {{ return(settings.get("state_in_lake", true) | string | lower != "false") }}
{%- endmacro %}


{% macro _tables_with_state(schema, lost=false) -%}
    {#- Returns the raw tables except tables whose source declares `state_in_lake: false`. -#}
    {%- set tables = [] -%}
    {%- for table in (strandline._lost_tables(schema) if lost
        else strandline._ledger_tables(schema))
        if table.settings.get("state_in_lake", true) | string | lower != "false" -%}
        {%- do tables.append(table) -%}
    {%- endfor -%}
    {{ return(tables) }}
{%- endmacro %}


{% macro _judge_states(state, model_name, grace_minutes=0, raw_schema=none) -%}
    {#- Returns the result of _read_fingerprints() and `sql`, the SELECT of the failing states. -#}
    {%- set schema = raw_schema or state.schema -%}
    {%- set read = strandline._read_fingerprints(state, strandline._tables_with_state(schema),
        strandline._state_table("key"), none if raw_schema else model_name) -%}
    {{ return(dict(read, sql=strandline._state_consistent_sql(
        read, strandline._tables_with_state(schema, lost=true), grace_minutes))) }}
{%- endmacro %}


{% macro _state_consistent_sql(read, lost, grace_minutes) -%}
    {#- Compares the states with their raw tables. If a state is ahead of its raw table, syncs miss
        rows. If a state is behind its raw table, rows are reread. The versions of a state must not
        have gaps. A running loader publishes data first and then writes the state. Therefore a
        state from before the raw tables were read must not be ahead, and a state from after that
        lacks at most the newest batch. -#}
    {%- set before = strandline._newest_states(read.before) -%}
    {%- set after = before if read.after == read.before
        else strandline._newest_states(read.after) -%}
    {%- set parts = strandline._parts(read.unproved, before, after) -%}
    {%- do strandline._read_raw_tables(parts) -%}
    {%- set raw_tables, newest_batches = [], {} -%}
    {%- for key, state in before.items() if state.table in lost | map(attribute="name") -%}
        {%- do raw_tables.append([key, none, false, false]) -%}
    {%- endfor -%}
    {%- for part in parts -%}
        {%- if part.key -%}
            {%- do raw_tables.append([part.key, part.get("raw_batch"), part.is_ahead or false,
                part.is_unreadable or false]) -%}
        {%- endif -%}
        {%- for head in part.heads -%}
            {%- set key = head.source ~ "." ~ part.table.name -%}
            {%- set later = head.batch - after.get(key, {}).get("batch", 0) -%}
            {%- set missing = [later, head.missing] | min if part.table.is_shared else later -%}
            {%- if missing > 0 and key not in newest_batches -%}
                {%- do newest_batches.update({key: [key, part.table.name, head.batch, missing,
                    strandline._seconds_since_commit(part.table, head, grace_minutes)
                    > 60 * grace_minutes]}) -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endfor -%}
    with raw_tables as (
        {{ strandline._literal_rows({"key": "string", "raw_batch": "bigint", "is_ahead": "boolean",
            "is_unreadable": "boolean"}, raw_tables) }}
    ),

    -- The newest batches that the states lack.
    heads as (
        {{ strandline._literal_rows({"key": "string", "table_name": "string", "head": "bigint",
            "missing_batches": "bigint", "is_old": "boolean"}, newest_batches.values() | list) }}
    ),

    versions as (
        select
            state.key,
            coalesce(state.version, 0) as version,
            state.value,
            raw_tables.key as raw_key,
            raw_tables.raw_batch,
            raw_tables.is_ahead,
            raw_tables.is_unreadable,
            {{ adapter.dispatch("_is_json_object", "strandline")("state.value") }} as is_object,
            try_cast({{ strandline._json_text("state.value", "batch") }} as bigint) as batch,
            {{ strandline._json_text("state.value", "cursor") }} as cursor,
            count(*) over (partition by state.key, coalesce(state.version, 0)) as rows_of_version,
            lag(coalesce(state.version, 0)) over (
                partition by state.key
                order by coalesce(state.version, 0)
            ) as previous_version,
            rank() over (partition by state.key order by coalesce(state.version, 0) desc) as age
        from {{ read.before }} as state
        left join raw_tables
            on state.key = raw_tables.key
    ),

    ahead as (
        select
            {{ strandline._state_table("key") }} as table_name,
            key,
            version,
            value,
            batch,
            raw_batch,
            case
                when rows_of_version > 1 then 'several rows of one version'
                -- The oldest version has no predecessor, because older versions may be pruned.
                when version > previous_version + 1 then 'versions before this one are missing'
                when age > 1 then null
                when not is_object then 'the state is not a JSON object'
                when batch is null and cursor is null then null
                when batch is null then 'the state has a cursor but no batch'
                when raw_key is not null and batch > 0 and raw_batch is null
                    then 'there is a state, but no raw data'
                when batch > raw_batch then 'the batch is ahead of the raw table'
                when is_unreadable then 'the cursor is not of its column''s type'
                when is_ahead then 'the cursor is ahead of the raw table'
            end as problem
        from versions
    ),

    behind as (
        select
            heads.table_name,
            states.key,
            states.version,
            states.value,
            states.batch,
            heads.head as raw_batch,
            case
                when states.key is null and heads.missing_batches > 1
                    then 'raw data without a state'
                when heads.missing_batches > 1 then 'several batches are not in the state'
                when heads.is_old
                    then 'the newest batch is not in the state: the next run recovers it'
            end as problem
        from heads
        left join (
            {{ strandline.current_state(read.after) }}
        ) as states
            on heads.key = states.key
    )

    select *
    from ahead
    where problem is not null
    union all
    select *
    from behind
    where problem is not null
{%- endmacro %}


{% macro _newest_states(state) -%}
    {#- Returns the newest version of each state: {key: {table, source, cursor, field, batch}}. -#}
    {%- set states = {} -%}
    {%- for row in run_query("select key, table_name, source_name, cursor, cursor_field, batch from ("
        ~ strandline.current_state(state) ~ ") as newest order by 1") -%}
        {%- do states.update({row[0]: {"table": row[1], "source": row[2], "cursor": row[3],
            "field": row[4], "batch": (row[5] or 0) | int}}) -%}
    {%- endfor -%}
    {{ return(states) }}
{%- endmacro %}


{% macro _parts(tables, before, after) -%}
    {#- Returns the parts of the raw tables that are compared: [{place, table, key, source, cursor,
        column, type, batch, known, heads}]. Each state has a part, which is the whole raw table, or
        the rows of the state's source if sources share the table. The rows that belong to no state
        are a part without a key. `known` is the newest batch in the state. -#}
    {%- set parts = [] -%}
    {%- for table in tables -%}
        {%- set sources = [] -%}
        {%- set columns = strandline._columns(table.relation) -%}
        {%- for key, state in before.items() if state.table == table.name -%}
            {%- do sources.append(state.source) -%}
            {%- set column = columns.get((state.field or "") | lower) -%}
            {%- do parts.append(dict(state, place=parts | length, table=table, key=key,
                column=column, type=column.type if column and state.cursor is not none else none,
                known=after.get(key, state).batch)) -%}
        {%- endfor -%}
        {%- do table.update({"sources": sources, "is_shared": sources | length > 1
            if target.type != "spark"
            else strandline._sources_of(table.properties) | length > 0}) -%}
        {%- if table.is_shared or not sources -%}
            {%- do parts.append({"place": parts | length, "table": table, "key": none,
                "column": none, "type": none, "known": 0}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(parts) }}
{%- endmacro %}


{% macro _read_raw_tables(parts, all_batches=false) -%}
    {#- Reads the raw tables. Sets raw_batch, is_ahead and is_unreadable of each part. Sets `heads`:
        the newest batch, and in a shared table the newest batch of each source, as [{source, batch,
        missing, seconds_old}]. `missing` is the number of batches after `known`. First reads only
        the state's batch and later ones, which usually contain the state's cursor. If they do not,
        reads all batches. -#}
    {%- set raw_sql -%}
        {%- for type in parts | map(attribute="type") | unique(case_sensitive=true) %}
        select
            place,
            max(_cq_batch) as raw_batch,
            max_by(_cq_source_name, _cq_batch) as raw_source,
            count(distinct case when _cq_batch > known then _cq_batch end) as missing,
            {{ strandline._seconds_between("max(_cq_sync_time)", "current_timestamp") }}
                as seconds_old,
            {%- if type %}
            {%- set is_dated_ahead = strandline._is_ahead(
                "max(raw_cursor)", type, sync_time="max(_cq_sync_time)")
                if strandline._is_time(type) else "false" %}
            max(state_cursor) > {% if strandline._is_time(type) -%}
            -- Rows dated in the future are ignored, because the stored cursor is never later than
            -- the source's clock.
            case
                when {{ is_dated_ahead }} then greatest(
                    max(case when not ({{ strandline._is_ahead("raw_cursor", type) }})
                        then raw_cursor end),
                    cast(max(_cq_sync_time) as {{ type }})
                )
                else max(raw_cursor)
            end
            {%- else -%}
            max(raw_cursor)
            {%- endif %} as is_ahead,
            max(state_cursor) is null as is_unreadable,
            {{ is_dated_ahead }} as is_dated_ahead
            {%- else %}
            false as is_ahead,
            false as is_unreadable,
            false as is_dated_ahead
            {%- endif %}
        from (
            -- One row for each part, so that an empty raw table also has a result.
            select
                place,
                cast(null as {{ dbt.type_string() }}) as part_source,
                0 as known,
                cast(null as bigint) as _cq_batch,
                cast(null as {{ dbt.type_string() }}) as _cq_source_name,
                cast(null as timestamp) as _cq_sync_time,
                cast(null as {{ type or "bigint" }}) as raw_cursor,
                state_cursor
            from (
                values
                {%- for part in parts if part.type == type %}
                ({{ part.place }}, {{ strandline._cursor_value(
                    strandline._literal(part.cursor), type) if type else "null" }})
                {{- "," if not loop.last }}
                {%- endfor %}
            ) as states (place, state_cursor)
            {%- for part in parts if part.type == type %}
            union all
            select
                {{ part.place }},
                {{ "_cq_source_name" if part.table.is_shared and not part.key else "null" }},
                {{ part.known }},
                _cq_batch,
                _cq_source_name,
                _cq_sync_time,
                {{ strandline._quote(part.column.name) if type else "null" }},
                null
            from {{ strandline._pinned(part.table.relation, part.table.get("snapshot")) }}
                as rows_of_raw
            where {{ "_cq_batch >= " ~ part.batch if part.key and not all_batches else "true" }}
            {%- if part.table.is_shared and part.key %}
                and _cq_source_name = {{ strandline._literal(part.source) }}
            {%- elif part.table.sources and not part.key %}
                and coalesce(_cq_source_name not in ({{ strandline._literal_list(
                part.table.sources) }}), true)
            {%- endif %}
            {%- endfor %}
        ) as rows_of_type
        group by place, part_source
        {{- "\n        union all" if not loop.last }}
        {%- endfor %}
    {%- endset -%}
    {%- set rows = {} -%}
    {%- for row in (run_query(raw_sql) if parts else []) -%}
        {%- do rows.setdefault(row[0] | int, []).append(row) -%}
    {%- endfor -%}
    {%- set doubtful = [] -%}
    {%- for part in parts -%}
        {%- set heads = [] -%}
        {%- for row in rows[part.place] if row[1] is not none -%}
            {%- do heads.append({"batch": row[1] | int, "source": row[2] or "",
                "missing": row[3] | int, "seconds_old": (row[4] or 0) | float}) -%}
        {%- endfor -%}
        {%- set first = rows[part.place][0] -%}
        {%- do doubtful.append(part) if part.key and (first[5] or not heads) -%}
        {%- do part.update({
            "heads": heads,
            "raw_batch": heads[0].batch if heads else none,
            "is_unreadable": first[6],
            "is_ahead": first[5] and not (all_batches and first[7]
                and strandline._is_committed(part)),
        }) -%}
    {%- endfor -%}
    {%- if doubtful and not all_batches -%}
        {%- do strandline._read_raw_tables(doubtful, all_batches=true) -%}
    {%- endif -%}
{%- endmacro %}


{% macro _is_committed(part) -%}
    {#- Returns whether a commit of the raw table contains the state's cursor or a higher cursor.
        The stored cursor may be a time taken from the source's clock. Only commits contain such a
        cursor. Compaction expires commits but copies the newest commits to table properties, which
        are also read. -#}
    {%- if target.type != "spark" -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set cursor = strandline._cursor_value(
        "get_json_object(state, '$.cursor')", part.column.type) -%}
    {%- set commits_sql -%}
        select count(*)
        from (
            select summary['strandline.state'] as state, summary['strandline.sync'] as sync
            from {{ part.table.relation }}.snapshots
            {%- for name, text in part.table.properties.items()
                if name.startswith("strandline.newest") %}
            {%- set newest = fromjson(text) %}
            union all
            select {{ strandline._literal(newest.state or "{}") }}, {{ strandline._literal(
                tojson(newest.sync or {})) }}
            {%- endfor %}
        ) as commits
        where cast(get_json_object(state, '$.batch') as bigint) <= {{ part.batch }}
            and {{ cursor }} >= {{ strandline._cursor_value(
            strandline._literal(part.cursor), part.column.type) }}
            {%- if part.table.is_shared %}
            and get_json_object(sync, '$.source_name') = {{ strandline._literal(part.source) }}
            {%- endif %}
    {%- endset -%}
    {{ return(strandline._value(commits_sql) | int > 0) }}
{%- endmacro %}


{% macro _seconds_since_commit(table, head, grace_minutes) -%}
    {#- Uses the commit time, because `_cq_sync_time` is the start of the sync, and the sync may
        have started hours before the commit. -#}
    {%- if target.type != "spark" or not grace_minutes -%}
        {{ return(head.seconds_old) }}
    {%- endif -%}
    {%- set seconds = strandline._value(
        "select " ~ strandline._seconds_between("max(committed_at)", "current_timestamp") ~ " from "
        ~ table.relation
        ~ ".snapshots where coalesce(summary['strandline.batch'], summary['published-wap-id']) = '"
        ~ head.batch ~ "'"
    ) -%}
    {{ return(head.seconds_old if seconds is none else seconds | float) }}
{%- endmacro %}


{% macro default___is_json_object(column) -%}
    json_valid({{ column }}) and substring(ltrim({{ column }}), 1, 1) = '{'
{%- endmacro %}


{% macro spark___is_json_object(column) -%}
    get_json_object({{ column }}, '$') is not null and substring(ltrim({{ column }}), 1, 1) = '{'
{%- endmacro %}
