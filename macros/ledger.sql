{% macro state_relation(schema) -%}
    {#- Each raw schema has a state table and a ledger, under the names that the project gives them. -#}
    {{ return(strandline.beside(schema, "_cq_state")) }}
{%- endmacro %}


{% macro syncs_relation(schema) -%}
    {{ return(strandline.beside(schema, "_cq_syncs")) }}
{%- endmacro %}


{% macro reconciled_relation(schema) -%}
    {{ return(strandline.beside(schema, "_cq_reconciled")) }}
{%- endmacro %}


{% macro beside(schema, name) -%}
    {#- One of the loader's own tables in a raw schema, under the name that the project gives it. -#}
    {{ return(strandline.exactly(schema, strandline.own_source(name).get("identifier") or name)) }}
{%- endmacro %}


{% macro own_source(name) -%}
    {#-
        A source of this package from the graph, or {} if a project has disabled it or in a unit test, which has
        no graph. Its names were rendered with the package's variables; in a test, `var()` sees the variables of
        the test's own project.
    -#}
    {%- if execute -%}
        {%- for node in graph.get("sources", {}).values()
            if node.package_name == "strandline" and node.source_name == "strandline" and node.name == name -%}
            {{ return(node) }}
        {%- endfor -%}
    {%- endif -%}
    {{ return({}) }}
{%- endmacro %}


{% macro exactly(schema, identifier) -%}
    {#- A quoted relation. If the schema is `catalog.schema`, which dbt takes for one name, only the table is quoted. -#}
    {%- set name = schema ~ "." ~ identifier -%}
    {%- if "${" in name -%}
        {%- do strandline.check_name(name) -%}
    {%- endif -%}
    {{ return(api.Relation.create(
        schema=schema,
        identifier=identifier,
        quote_policy={"database": false, "schema": "." not in schema, "identifier": true},
    )) }}
{%- endmacro %}


{% macro exists(relation) -%}
    {#- load_relation() finds neither names with capitals nor a schema that names its catalog. -#}
    {%- if "." in relation.schema or relation.identifier != relation.identifier | lower
        or relation.schema != relation.schema | lower -%}
        {{ return(relation.identifier | lower in strandline.tables_in(relation.schema)) }}
    {%- endif -%}
    {{ return(load_relation(relation) is not none) }}
{%- endmacro %}


{% macro state_of(relation) -%}
    {#-
        The state table with a raw table's cursor: in the same schema, or the table that
        config.meta.strandline.state_table names. none if the project says that cursors are not kept in the lake.
    -#}
    {%- set settings = strandline.tested_settings(relation) -%}
    {%- set named = settings.get("state_table") -%}
    {%- if not (settings.get("state_in_lake", named is not none or strandline.state_in_lake())) -%}
        {{ return(none) }}
    {%- endif -%}
    {%- if not named -%}
        {{ return(strandline.state_relation(relation.schema)) }}
    {%- endif -%}
    {%- set schema, dot, table = named.rpartition(".") -%}
    {{ return(strandline.exactly(schema if dot else relation.schema, table)) }}
{%- endmacro %}


{% macro state_in_lake() -%}
    {#- The variable strandline__state_in_lake, as rendered in the package's own source. -#}
    {%- set said = strandline.own_source("_cq_state").get("config", {}).get("meta", {}).get("strandline", {}) -%}
    {{ return(said.get("state_in_lake", true) | string | lower != "false") }}
{%- endmacro %}


{% macro no_state_expected(state) -%}
    {#-
        Whether a state table may be missing: the project says that cursors are kept elsewhere, or nothing
        was synced yet, neither into its schema nor into any table that the project declares.
    -#}
    {%- if state is string or strandline.exists(state) -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set declared = strandline.tested_settings(state).get("state_in_lake", strandline.state_in_lake()) -%}
    {{ return(
        declared | string | lower == "false"
        or not (strandline.tables_in(state.schema) or strandline.keyed_sources())
    ) }}
{%- endmacro %}


{% macro missing_state(state) -%}
    {#- A failing row: without a state table there is nothing to check. -#}
    select
        {{ strandline.text_literal(state.schema ~ "." ~ state.identifier) }} as table_name,
        {{ strandline.text_literal(
            "there is no such state table: `loader run` or `loader state rebuild` makes it. If it has another name, say so in "
            ~ "the variable strandline__state_table, or in config.meta.strandline.state_table of the source; if cursors are "
            ~ "kept elsewhere, set strandline__state_in_lake, or state_in_lake there, to false"
        ) }} as problem
{%- endmacro %}


{% macro missing_ledger(syncs) -%}
    select
        {{ strandline.text_literal(syncs.schema ~ "." ~ syncs.identifier) }} as table_name,
        {{ strandline.text_literal(
            "there is no such ledger: `loader state rebuild` creates it again. If it has another name, say so in the variable "
            ~ "strandline__syncs_table"
        ) }} as problem
{%- endmacro %}


{% macro synced_cursor(syncs, table_name) -%}
    {#- The cursor column in a table's newest ledger row that has one; none if there is no such row. -#}
    {%- set found = run_query(
        "select max_by(cursor_field, started_at) from " ~ syncs
        ~ " as syncs where cursor_field is not null and table_name = " ~ strandline.text_literal(table_name)
    ) -%}
    {{ return(found.columns[0].values()[0]) }}
{%- endmacro %}


{% macro stored_cursor(state, table_name) -%}
    {#- The cursor column in a table's newest state; none if there is none. -#}
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
    {#- A SELECT without rows for the given (name, type) pairs, in place of a table that does not exist yet. -#}
    {%- set selected = [] -%}
    {%- for name, type in columns -%}
        {%- do selected.append("cast(null as " ~ type ~ ") as " ~ name) -%}
    {%- endfor -%}
    {{ return("select " ~ selected | join(", ") ~ " where false") }}
{%- endmacro %}
