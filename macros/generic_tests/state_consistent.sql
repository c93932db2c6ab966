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
    {{ return(dict(read, sql=strandline._state_consistent_sql(read.records, read.unproved,
        strandline._tables_with_state(schema, lost=true), grace_minutes))) }}
{%- endmacro %}


{% macro _state_consistent_sql(state, tables, lost, grace_minutes) -%}
    {#- Compares the states with their raw tables. If a state is ahead of its raw table, syncs miss
        rows. If a state is behind its raw table, rows are reread. The versions of a state must not
        have gaps. A running loader publishes data first and then writes the state. Therefore the
        newest batches of the raw tables (`heads`) are read first, then the states, and then the raw
        tables again. -#}
    {%- set judged = [] -%}
    {%- set batches = {} -%}
    {%- set lost_keys = [] -%}
    {%- for row in run_query("select table_name, source_name, cursor, cursor_field, batch from ("
        ~ strandline.current_state(state) ~ ") as newest order by 1, 2") -%}
        {%- do batches.update({row[1] ~ "." ~ row[0]: (row[4] or 0) | int}) -%}
        {%- for table in lost if table.name == row[0] -%}
            {%- do lost_keys.append(row[1] ~ "." ~ row[0]) -%}
        {%- endfor -%}
        {%- for table in tables if table.name == row[0] -%}
            {%- do table.sources.append(row[1]) -%}
            {%- set column = strandline._columns(table.relation).get(row[3] | lower) if row[3]
                else none -%}
            {%- do judged.append({
                "place": judged | length,
                "key": row[1] ~ "." ~ row[0],
                "source": row[1],
                "table": table,
                "column": column,
                "cursor": row[2],
                "type": column.type if column and row[2] is not none else none,
                "batch": (row[4] or 0) | int,
            }) -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- set heads = [] -%}
    {%- for table in tables -%}
        {%- do table.update({
            "snapshot": strandline._snapshot(strandline._properties_after(table)),
            "is_shared": strandline._sources_of(table.properties) | length > 0
                if target.type == "spark" else table.sources | length > 1,
        }) -%}
        {%- if not table.sources -%}
            {%- do judged.append({"place": judged | length, "key": none, "table": table,
                "column": none, "type": none}) -%}
        {%- endif -%}
        {#- A shared raw table has a state for each source, so the newest batch is also read for
            each source. -#}
        {%- if table.is_shared or table.snapshot_before is defined
            and table.snapshot_before != table.snapshot -%}
            {%- do table.update({"has_moved": true}) -%}
            {%- do heads.extend(strandline._heads_before(table)) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- do strandline._read_raw_tables(judged) -%}
    {%- for entry in judged if not entry.table.get("has_moved") and entry.raw_batch is not none -%}
        {%- do entry.table.update({"has_moved": true}) -%}
        {%- do heads.append({
            "table": entry.table,
            "source": entry.raw_source,
            "batch": entry.raw_batch,
            "before": entry.raw_batch - 1,
            "seconds_old": entry.seconds_old,
        }) -%}
    {%- endfor -%}
    {%- for head in heads if batches.get(
        (head.source or "") ~ "." ~ head.table.name, 0) < head.batch -%}
        {%- do head.update({"is_old": strandline._seconds_since_commit(
            head, grace_minutes) > 60 * grace_minutes}) -%}
    {%- endfor -%}
    {%- set raw_tables, newest_batches = [], [] -%}
    {%- for entry in judged if entry.key -%}
        {%- do raw_tables.append([entry.key, entry.raw_batch, entry.is_ahead or false,
            entry.is_unreadable or false]) -%}
    {%- endfor -%}
    {%- for key in lost_keys -%}
        {%- do raw_tables.append([key, none, false, false]) -%}
    {%- endfor -%}
    {%- for head in heads -%}
        {%- do newest_batches.append([head.table.name, head.source, head.batch, head.before,
            head.is_old or false]) -%}
    {%- endfor -%}
    with raw_tables as (
        {{ strandline._literal_rows({"key": "string", "raw_batch": "bigint", "is_ahead": "boolean",
            "is_unreadable": "boolean"}, raw_tables) }}
    ),

    -- The newest batches of the raw tables before the states were read.
    heads as (
        {{ strandline._literal_rows({"table_name": "string", "source_name": "string",
            "head": "bigint", "head_before": "bigint", "is_old": "boolean"}, newest_batches) }}
    ),

    versions as (
        select
            key,
            coalesce(version, 0) as version,
            value,
            updated_at,
            count(*) over (partition by key, coalesce(version, 0)) as rows_of_version,
            lag(coalesce(version, 0)) over (partition by key order by coalesce(version, 0))
                as previous_version,
            rank() over (partition by key order by coalesce(version, 0) desc) as age
        from {{ state }} as state
    ),

    newest as (
        select
            versions.*,
            raw_tables.key is not null as has_raw,
            raw_tables.raw_batch,
            raw_tables.is_ahead,
            raw_tables.is_unreadable,
            {{ strandline._is_json_object("value") }} as is_object,
            try_cast({{ strandline._json_text("value", "batch") }} as bigint) as batch,
            {{ strandline._json_text("value", "cursor") }} as cursor
        from versions
        left join raw_tables
            on versions.key = raw_tables.key
            and versions.age = 1
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
                when has_raw and batch > 0 and raw_batch is null
                    then 'there is a state, but no raw data'
                when has_raw and batch > raw_batch then 'the batch is ahead of the raw table'
                when is_unreadable then 'the cursor is not of its column''s type'
                when is_ahead then 'the cursor is ahead of the raw table'
            end as problem
        from newest
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
                when states.key is null and heads.head_before > 0 then 'raw data without a state'
                when coalesce(states.batch, 0) < heads.head_before
                    then 'several batches are not in the state'
                when coalesce(states.batch, 0) < heads.head and heads.is_old
                    then 'the newest batch is not in the state: the next run recovers it'
            end as problem
        from heads
        left join (
            {{ strandline.current_state(state) }}
        ) as states
            on heads.table_name = states.table_name
            and coalesce(heads.source_name, states.source_name) = states.source_name
    )

    select *
    from ahead
    where problem is not null
    union all
    select *
    from behind
    where problem is not null
{%- endmacro %}


{% macro _read_raw_tables(judged) -%}
    {#- Reads the raw tables and sets raw_batch, raw_source, seconds_old, is_ahead and is_unreadable
        for each state. -#}
    {%- set raw_sql -%}
        {%- for type in judged | map(attribute="type") | unique(case_sensitive=true) %}
        select
            place,
            max(_cq_batch) as raw_batch,
            max_by(_cq_source_name, _cq_batch) as raw_source,
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
            -- One row for each state, so that an empty raw table also has a result.
            select
                place,
                cast(null as bigint) as _cq_batch,
                cast(null as {{ dbt.type_string() }}) as _cq_source_name,
                cast(null as timestamp) as _cq_sync_time,
                cast(null as {{ type or "bigint" }}) as raw_cursor,
                state_cursor
            from (
                values
                {%- for entry in judged if entry.type == type %}
                ({{ entry.place }}, {{ strandline._cursor_value(
                    strandline._literal(entry.cursor), type) if type else "null" }})
                {{- "," if not loop.last }}
                {%- endfor %}
            ) as states (place, state_cursor)
            {%- for entry in judged if entry.type == type %}
            union all
            select
                {{ entry.place }},
                _cq_batch,
                _cq_source_name,
                _cq_sync_time,
                {{ strandline._quote(entry.column.name) if type else "null" }},
                null
            from {{ entry.table.relation }}{{ " version as of " ~ entry.table.snapshot
                if entry.table.snapshot }} as rows_of_raw
            {%- if entry.table.is_shared %}
            where _cq_source_name = {{ strandline._literal(entry.source) }}
            {%- endif %}
            {%- endfor %}
        ) as rows_of_type
        group by place
        {{- "\n        union all" if not loop.last }}
        {%- endfor %}
    {%- endset -%}
    {%- for row in (run_query(raw_sql) if judged else []) -%}
        {%- set entry = judged[row[0] | int] -%}
        {%- do entry.update({
            "raw_batch": row[1] | int if row[1] is not none else none,
            "raw_source": row[2],
            "seconds_old": (row[3] or 0) | float,
            "is_unreadable": row[5],
            "is_ahead": row[4] and not (row[6] and strandline._is_committed(entry)),
        }) -%}
    {%- endfor -%}
{%- endmacro %}


{% macro _is_committed(entry) -%}
    {#- Returns whether a commit of the raw table contains the state's cursor or a higher cursor.
        The stored cursor may be a time taken from the source's clock. Only commits contain such a
        cursor. Compaction expires commits but copies the newest commits to table properties, which
        are also read. -#}
    {%- if target.type != "spark" -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set cursor = strandline._cursor_value(
        "get_json_object(state, '$.cursor')", entry.column.type) -%}
    {%- set commits_sql -%}
        select count(*)
        from (
            select summary['strandline.state'] as state, summary['strandline.sync'] as sync
            from {{ entry.table.relation }}.snapshots
            {%- for name, text in entry.table.properties.items()
                if name.startswith("strandline.newest") %}
            {%- set newest = fromjson(text) %}
            union all
            select {{ strandline._literal(newest.state or "{}") }}, {{ strandline._literal(
                tojson(newest.sync or {})) }}
            {%- endfor %}
        ) as commits
        where cast(get_json_object(state, '$.batch') as bigint) <= {{ entry.batch }}
            and {{ cursor }} >= {{ strandline._cursor_value(
            strandline._literal(entry.cursor), entry.column.type) }}
            {%- if entry.table.is_shared %}
            and get_json_object(sync, '$.source_name') = {{ strandline._literal(entry.source) }}
            {%- endif %}
    {%- endset -%}
    {{ return(strandline._value(commits_sql) | int > 0) }}
{%- endmacro %}


{% macro _seconds_since_commit(head, grace_minutes) -%}
    {#- Uses the commit time, because `_cq_sync_time` is the start of the sync, and the sync may
        have started hours before the commit. -#}
    {%- if target.type != "spark" or not grace_minutes -%}
        {{ return(head.seconds_old) }}
    {%- endif -%}
    {%- set seconds = strandline._value(
        "select " ~ strandline._seconds_between("max(committed_at)", "current_timestamp") ~ " from "
        ~ head.table.relation
        ~ ".snapshots where coalesce(summary['strandline.batch'], summary['published-wap-id']) = '"
        ~ head.batch ~ "'"
    ) -%}
    {{ return(head.seconds_old if seconds is none else seconds | float) }}
{%- endmacro %}


{% macro _heads_before(table) -%}
    {#- Returns the newest batch of a raw table before the states were read, and the previous batch
        (`before`): [{table, source, batch, before, seconds_old}]. A shared table has an entry for
        each source. -#}
    {%- if target.type == "spark" and table.snapshot_before is none -%}
        {{ return([]) }}
    {%- endif -%}
    {%- set heads_sql -%}
        select
            max_by(source_name, batch),
            max(batch),
            max(case when age = 2 then batch end),
            {{ strandline._seconds_between("max(sync_time)", "current_timestamp") }}
        from (
            select
                _cq_source_name as source_name,
                _cq_batch as batch,
                max(_cq_sync_time) as sync_time,
                row_number() over (
                    {{- "partition by _cq_source_name " if table.is_shared -}}
                    order by _cq_batch desc
                ) as age
            from {{ table.relation }}{{ " version as of " ~ table.snapshot_before
                if table.snapshot_before }} as versions
            group by 1, 2
        ) as batches
        {{ "group by source_name" if table.is_shared }}
    {%- endset -%}
    {%- set heads = [] -%}
    {%- for row in run_query(heads_sql) if row[1] is not none -%}
        {%- do heads.append({
            "table": table,
            "source": row[0],
            "batch": row[1] | int,
            "before": (row[2] or 0) | int if table.is_shared else (row[1] | int) - 1,
            "seconds_old": row[3] | float,
        }) -%}
    {%- endfor -%}
    {{ return(heads) }}
{%- endmacro %}


{% macro _is_json_object(column) -%}
    {{- return(adapter.dispatch("_is_json_object", "strandline")(column)) -}}
{%- endmacro %}


{% macro default___is_json_object(column) -%}
    json_valid({{ column }}) and substring(ltrim({{ column }}), 1, 1) = '{'
{%- endmacro %}


{% macro spark___is_json_object(column) -%}
    get_json_object({{ column }}, '$') is not null and substring(ltrim({{ column }}), 1, 1) = '{'
{%- endmacro %}
