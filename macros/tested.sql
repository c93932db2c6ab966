{% macro tested_settings(relation) -%}
    {#-
        What the project says of a relation: {primary_key, cursor_field} from a model's config or
        from config.meta.strandline. Tests fall back on it for arguments that were not given.
    -#}
    {%- if execute and relation is not string -%}
        {%- for node in graph.sources.values() if node.schema == relation.schema and node.identifier == relation.identifier -%}
            {{ return((node.config.get("meta") or {}).get("strandline", {})) }}
        {%- endfor -%}
        {%- for node in graph.nodes.values()
            if node.resource_type == "model" and node.schema == relation.schema and node.alias == relation.identifier -%}
            {{ return({
                "primary_key": node.config.get("primary_key"),
                "cursor_field": node.config.get("cursor_field"),
            }) }}
        {%- endfor -%}
    {%- endif -%}
    {{ return({}) }}
{%- endmacro %}


{% macro tested_key(relation, primary_key, test) -%}
    {%- if not execute -%}
        {{ return(["primary_key"]) }}
    {%- endif -%}
    {%- set keys = strandline.key_columns(
        primary_key or strandline.tested_settings(relation).get("primary_key"),
        "Test " ~ test ~ " on " ~ relation
    ) -%}
    {%- do strandline.check_tested(relation, keys, "primary_key", primary_key) -%}
    {{ return(keys) }}
{%- endmacro %}


{% macro tested_optional_key(relation, primary_key) -%}
    {#- For tests that take whole rows where there is no key. -#}
    {%- set given = primary_key or strandline.tested_settings(relation).get("primary_key") -%}
    {%- set keys = [given] if given is string else (given or []) | list -%}
    {%- do strandline.check_tested(relation, keys, "primary_key", primary_key) -%}
    {{ return(keys) }}
{%- endmacro %}


{% macro tested_cursor(relation, cursor_field) -%}
    {%- set cursor = cursor_field or strandline.tested_settings(relation).get("cursor_field") -%}
    {%- do strandline.check_tested(relation, [cursor] if cursor else [], "cursor_field", cursor_field) -%}
    {{ return(cursor) }}
{%- endmacro %}


{% macro check_tested(relation, names, role, given) -%}
    {#-
        Refuses a test that names a column which is not there: Spark would answer with its whole
        plan. A relation that dbt's `where` made a subquery of, and one without a table, pass.
    -#}
    {%- if not execute or not names or relation is string or model is not defined or model.resource_type != "test" -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set columns = adapter.get_columns_in_relation(relation) | map(attribute="name") | list -%}
    {%- set known = columns | map("lower") | list -%}
    {%- set node_id = model.attached_node or model.depends_on.nodes | first | default("") -%}
    {%- set node = graph.nodes.get(node_id) or graph.sources.get(node_id) or {} -%}
    {%- for name in names if columns and name | lower not in known -%}
        {%- set shown = columns | reject("in", ["_cq_source_name", "_cq_sync_time", "_cq_batch", "_cq_seq",
            "_cq_row_hash", "_cq_deleted", "_cq_generation"]) | list -%}
        {{ exceptions.raise_compiler_error(
            "Test " ~ model.test_metadata.name ~ " on " ~ node_id.split(".")[0] ~ " "
            ~ (node_id.split(".")[2:] | join(".")) ~ ": its " ~ role ~ " '" ~ name ~ "' is not a column of " ~ relation
            ~ ", which has " ~ shown[:20] | join(", ") ~ (", ..." if shown | length > 20 else "") ~ ". Correct " ~ role
            ~ " in " ~ (model.original_file_path if given else node.get("original_file_path", "the project")) ~ "."
        ) }}
    {%- endfor -%}
{%- endmacro %}


{% macro tested_order(relation, cursor_field, test) -%}
    {#- The cursor column, for tests that have nothing to ask without one. -#}
    {%- if not execute -%}
        {{ return("cursor_field") }}
    {%- endif -%}
    {%- set cursor = strandline.tested_cursor(relation, cursor_field) -%}
    {%- if not cursor -%}
        {{ exceptions.raise_compiler_error(
            "Test " ~ test ~ " on " ~ relation ~ " needs a cursor_field: give it as an argument or in the source's "
            ~ "config.meta.strandline."
        ) }}
    {%- endif -%}
    {{ return(cursor) }}
{%- endmacro %}


{% macro tested_time(relation, cursor_field, test) -%}
    {#- The cursor column, which must be a time: a number is never in the future. -#}
    {%- set cursor = strandline.tested_order(relation, cursor_field, test) -%}
    {%- if execute and relation is not string -%}
        {%- set type = strandline.column_type(relation, cursor) -%}
        {%- if type not in ("date", "timestamp", "timestamp_ntz") -%}
            {{ exceptions.raise_compiler_error(
                "Test " ~ test ~ " on " ~ relation ~ ": the cursor " ~ cursor ~ " is "
                ~ ("of type " ~ type if type else "not among its columns")
                ~ ". It asks about dates and timestamps: remove the test, or name a column that is one."
            ) }}
        {%- endif -%}
    {%- endif -%}
    {{ return(cursor) }}
{%- endmacro %}


{% macro tested_rows(relation, row_condition) -%}
    {#- Beside the config `where`, which hides from a test what it tests: the condition, and all else kept. -#}
    {%- if not row_condition -%}
        {{ return(relation) }}
    {%- endif -%}
    {{ return("(select * from " ~ relation ~ " as all_rows where " ~ row_condition ~ ")") }}
{%- endmacro %}


{% macro tested_table(relation, test) -%}
    {#- State and ledger stand beside the raw table: these tests need the table itself. -#}
    {%- if execute and relation is string -%}
        {{ exceptions.raise_compiler_error(
            "Test " ~ test ~ " looks up the state and the ledger of a raw table, so it cannot take a `where`. "
            ~ "Remove `where` from its config."
        ) }}
    {%- endif -%}
    {{ return(relation) }}
{%- endmacro %}


{% macro tested_source(snapshot, raw, test) -%}
    {#- The raw table of a snapshot: the one that is named, else the only source its model reads. -#}
    {%- if raw is not none -%}
        {{ return(raw) }}
    {%- endif -%}
    {%- set found = [] -%}
    {%- for node in graph.nodes.values()
        if node.resource_type == "model"
        and node.schema == snapshot.schema
        and (node.alias or node.name) == snapshot.identifier -%}
        {%- for source in graph.sources.values() if source.unique_id in node.depends_on.nodes -%}
            {%- do found.append(source) -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- if found | length != 1 -%}
        {{ exceptions.raise_compiler_error(
            "Test " ~ test ~ " on " ~ snapshot ~ ": its model reads " ~ found | length
            ~ " sources. Name the raw table: `raw: source('...', '...')`."
        ) }}
    {%- endif -%}
    {{ return(api.Relation.create(
        schema=found[0].schema, identifier=found[0].identifier, quote_policy=found[0].quoting
    )) }}
{%- endmacro %}


{% macro column_type(relation, column) -%}
    {%- for candidate in adapter.get_columns_in_relation(relation) if candidate.name | lower == column | lower -%}
        {{ return(candidate.dtype) }}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro pinned(relation) -%}
    {#-
        The relation as it is now, in every statement from here on. The loader publishes data, then
        state, then ledger: a test that fixes the later before it reads the earlier never takes a
        sync that runs meanwhile for a gap.
    -#}
    {%- set snapshot = strandline.current_snapshot(relation) -%}
    {{ return(relation ~ (" version as of " ~ snapshot if snapshot else "")) }}
{%- endmacro %}
