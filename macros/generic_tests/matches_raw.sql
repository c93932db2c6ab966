{% test matches_raw(model, raw=none, unique_key=none, cursor_field=none) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {%- if not strandline._is_testing() %}
        {{ strandline._nothing() }}
    {%- else %}
        {%- do strandline._exists(model) if model is string %}
        {%- set subject = strandline._subject(
            model, "matches_raw", unique_key, cursor_field, needs=["key"]) %}
        {%- if subject.mark is none %}
            {%- set raw = raw or strandline._only_source(subject) %}
            {%- set head = strandline._value("select max(_cq_batch) from " ~ raw) or 0 %}
            {%- set columns = strandline._columns(raw).items() | selectattr(
                "0", "in", subject.types) | map(attribute="1.name") | list %}
            {%- do subject.update({"spec": {
                "kind": "history" if "is_current" in subject.types and "valid_from" in subject.types
                    else "latest",
                "sql": "select * from " ~ raw,
                "key": subject.key,
                "cursor": subject.cursor,
                "union": false,
                "row_filter": none,
                "refreshes": [],
                "columns": columns,
                "tables": [{"name": strandline._table_name(raw), "head": head, "floor": none}],
            }}) %}
        {%- endif %}
        {{ strandline._subject_test_sql("matches_raw", subject) }}
    {%- endif %}
{% endtest %}


{% macro _only_source(subject) -%}
    {%- set sources = (subject.node.get("depends_on") or {}).get("nodes", [])
        | select("in", graph.sources) | list -%}
    {%- if sources | length != 1 -%}
        {{ exceptions.raise_compiler_error(
            subject.owner ~ ": its model reads " ~ sources | length ~ " sources. Specify the raw "
            ~ "table: `raw: source('shop', 'orders')`; a table of a deduped_ materialization must "
            ~ "have been built once."
        ) }}
    {%- endif -%}
    {{ return(strandline._node_relation(graph.sources[sources[0]])) }}
{%- endmacro %}


{% macro _matches_raw_sql(subject, asked) -%}
    {#- Returns the rows that differ between a table and the result of its SELECT from the same raw
        batches. Also returns the keys that the table contains more than once. -#}
    {%- set spec = subject.spec -%}
    {%- set identity = spec.key + (["_cq_batch", "_cq_seq"] + (["_cq_table"] if spec.union else [])
        if spec.kind == "history" else []) -%}
    {%- set columns = spec.columns + (["valid_from", "valid_to", "is_current"]
        if spec.kind == "history" else []) -%}
    {#- Dropping a column creates no commit, so the current columns are compared. -#}
    {%- set mark = subject.get("mark") -%}
    {%- set present = strandline._columns(subject.relation) if mark and not mark.is_of_this_run
        else none -%}
    {%- for name in columns if present is not none and name | lower not in present -%}
        {{ return("select " ~ strandline._literal("the table has no column " ~ name)
            ~ " as problem") }}
    {%- endfor -%}
    {%- if asked == "false" -%}
        {{ return(strandline._nothing()) }}
    {%- endif -%}
    {%- set by_key = dict(subject, key=spec.key) -%}
    {%- set versions = "(\n" ~ spec.sql ~ "\n)" if asked is none
        else strandline._touched(by_key, subject.versions, asked) -%}
    {%- set rows = strandline._touched(by_key, subject.rows, asked) -%}
    {{- strandline._differing_rows(
        "(\n" ~ strandline._expected_sql(spec, versions)
        ~ "\n)", rows, identity, columns, subject.get("types"), strandline._one_task(spec)
    ) -}}
{%- endmacro %}


{% macro _differing_rows(expected, actual, identity, columns, types, hint) -%}
    {#- Groups the rows of both sides by key, with one shuffle, instead of joining them. -#}
    {%- set content = adapter.dispatch("_row_struct", "strandline")(columns, types) -%}
    with all_rows as (
        select {{ hint }}*
        from (
            select
                true as _cq_is_expected,
                {{ strandline._column_list(identity) }},
                {{ content }} as _cq_content
            from {{ expected }} as expected_rows
            union all
            select
                false,
                {{ strandline._column_list(identity) }},
                {{ content }}
            from {{ actual }} as actual_rows
        ) as both_sides
    ),

    compared as (
        select
            {{ strandline._column_list(identity) }},
            count(*) filter (where _cq_is_expected) as _cq_expected_rows,
            count(*) filter (where not _cq_is_expected) as _cq_actual_rows,
            first(_cq_content) filter (where _cq_is_expected) as _cq_expected,
            first(_cq_content) filter (where not _cq_is_expected) as _cq_actual
        from all_rows
        group by {{ strandline._column_list(identity) }}
    )

    select
        {{ strandline._column_list(identity) }},
        case
            when _cq_actual_rows = 0 then 'missing from the table'
            when _cq_expected_rows = 0 then 'not in the raw table, or deleted there'
            when _cq_actual_rows > 1 then 'more than once in the table'
            else 'differs from the raw table'
        end as problem,
        _cq_expected as expected,
        _cq_actual as actual
    from compared
    where _cq_expected_rows <> _cq_actual_rows
        or _cq_actual_rows > 1
        or _cq_expected is distinct from _cq_actual
{%- endmacro %}


{% macro default___row_struct(columns, types) -%}
    struct_pack(
        {%- for name in columns %}
        {{ strandline._quote(name) }} := {{ strandline._quote(name) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
{%- endmacro %}


{% macro spark___row_struct(columns, types) -%}
    {#- Spark cannot compare MAP columns, so their JSON strings are compared. The formats are set,
        because the default formats truncate times to milliseconds. -#}
    struct(
        {%- for name in columns %}
        {%- set value = strandline._quote(name) %}
        {%- if "map<" in ((types or {}).get(name | lower) or {}).get("type", "") %}
        to_json(struct({{ value }}), map(
            'ignoreNullFields', 'false',
            'timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
            'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
        )) as {{ value }}
        {%- else %}
        {{ value }}
        {%- endif %}{{ "," if not loop.last }}
        {%- endfor %}
    )
{%- endmacro %}
