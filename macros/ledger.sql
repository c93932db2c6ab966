{% macro state_relation(schema) -%}
    {{ return(api.Relation.create(schema=schema, identifier=var("strandline__state_table", "_cq_state"))) }}
{%- endmacro %}


{% macro syncs_relation(schema) -%}
    {{ return(api.Relation.create(schema=schema, identifier=var("strandline__syncs_table", "_cq_syncs"))) }}
{%- endmacro %}


{% macro synced_cursor(syncs, table_name) -%}
    {#- The cursor column that the ledger last names for a table; none where there is no such row. -#}
    {%- set found = run_query(
        "select max_by(cursor_field, started_at) from " ~ syncs
        ~ " as syncs where cursor_field is not null and table_name = " ~ strandline.text_literal(table_name)
    ) -%}
    {{ return(found.columns[0].values()[0]) }}
{%- endmacro %}


{% macro stored_cursor(state, table_name) -%}
    {#- The cursor column that the newest state of a table names; none where there is none. -#}
    {%- set found = run_query(
        "select max_by(get_json_object(value, '$.cursor_field'), coalesce(version, 0)) from " ~ state
        ~ " as state where " ~ strandline.state_table_name("key") ~ " = " ~ strandline.text_literal(table_name)
    ) -%}
    {{ return(found.columns[0].values()[0]) }}
{%- endmacro %}


{% macro no_state() -%}
    {{ return(strandline.no_rows([
        ("key", "string"), ("value", "string"), ("version", "bigint"), ("updated_at", "timestamp"),
    ])) }}
{%- endmacro %}


{% macro no_syncs() -%}
    {{ return(strandline.no_rows([
        ("run_id", "string"), ("source_name", "string"), ("table_name", "string"), ("batch", "bigint"),
        ("generation", "bigint"), ("mode", "string"), ("status", "string"), ("cursor_field", "string"),
        ("cursor_type", "string"), ("cursor_low", "string"), ("cursor_high", "string"),
        ("rows_read", "bigint"), ("rows_appended", "bigint"), ("rows_redelivered", "bigint"),
        ("rows_null_cursor", "bigint"), ("lookback", "string"), ("started_at", "timestamp"),
        ("finished_at", "timestamp"), ("snapshot_id", "bigint"), ("schema_changes", "string"),
        ("error", "string"), ("loader_version", "string"),
    ])) }}
{%- endmacro %}


{% macro no_rows(columns) -%}
    {#- A SELECT of the given (name, type) pairs without rows: what a table holds before it exists. -#}
    {%- set selected = [] -%}
    {%- for name, type in columns -%}
        {%- do selected.append("cast(null as " ~ type ~ ") as " ~ name) -%}
    {%- endfor -%}
    {{ return("select " ~ selected | join(", ") ~ " where false") }}
{%- endmacro %}
