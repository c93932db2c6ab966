{% macro testing() -%}
    {#-
        Whether a test has rows to check: not while dbt parses, not under --empty, and not if dbt only compiles
        and a table is not built yet.
    -#}
    {%- if execute -%}
        {%- do strandline.check_adapter(adapter.type()) -%}
    {%- endif -%}
    {%- if not execute or flags.EMPTY -%}
        {{ return(false) }}
    {%- endif -%}
    {%- for node in strandline.own_nodes() if strandline.compiles_only() and not strandline.exists(strandline.relation_of(node)) -%}
        {{ return(false) }}
    {%- endfor -%}
    {{ return(true) }}
{%- endmacro %}


{% macro compiles_only() -%}
    {#- `dbt compile` and `dbt docs generate` need the SQL even for tables that were never built. -#}
    {{ return(flags.WHICH in ("compile", "generate")) }}
{%- endmacro %}


{% macro own_nodes() -%}
    {#- The nodes that the current test is attached to and reads; [] outside a test. -#}
    {%- set own = [] -%}
    {%- if model is defined and model.resource_type == "test" -%}
        {%- for id in [model.attached_node] + model.depends_on.nodes if id in graph.nodes or id in graph.sources -%}
            {%- do own.append(graph.nodes.get(id) or graph.sources.get(id)) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(own) }}
{%- endmacro %}


{% macro tested_node(relation) -%}
    {#-
        A relation's node in the graph, or {} if there is none. A tested relation cannot be found by name under
        --defer, which renders another schema, or with a `where`, which renders a subquery. Then the test's own
        node says what it is attached to.
    -#}
    {%- set own = strandline.own_nodes() -%}
    {%- if relation is not string -%}
        {%- for node in own + graph.sources.values() | list + graph.nodes.values() | list if node.schema == relation.schema
            and (node.get("identifier") or node.get("alias") or node.name) == relation.identifier -%}
            {{ return(node) }}
        {%- endfor -%}
    {%- endif -%}
    {{ return(own[0] if own else {}) }}
{%- endmacro %}


{% macro tested_settings(relation) -%}
    {#-
        What the project says about a relation: config.meta.strandline, and primary_key and cursor_field from
        a model's config. Tests fall back on it for missing arguments.
    -#}
    {%- set settings = {} -%}
    {%- if execute -%}
        {%- set node = strandline.tested_node(relation) -%}
        {%- set configured = node.get("config") or {} -%}
        {%- do settings.update((configured.get("meta") or {}).get("strandline") or {}) -%}
        {%- for name in ["primary_key", "cursor_field"] if node.get("resource_type") == "model" and configured.get(name) -%}
            {%- do settings.update({name: configured.get(name)}) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(settings) }}
{%- endmacro %}


{% macro tested_relation(relation) -%}
    {#- The tested table, even if a `where` made a subquery of it; an error if it does not exist. -#}
    {%- if not execute -%}
        {{ return(relation) }}
    {%- endif -%}
    {%- set node = strandline.tested_node(relation) -%}
    {%- if relation is string -%}
        {%- set tested = strandline.exactly(node.schema, node.get("identifier") or node.get("alias") or node.name) -%}
    {%- else -%}
        {%- set tested = strandline.exactly(relation.schema, relation.identifier) -%}
    {%- endif -%}
    {%- if relation is not string and not strandline.compiles_only() and not strandline.exists(tested) -%}
        {{ exceptions.raise_compiler_error(
            strandline.test_on(tested) ~ ": there is no such table. `loader run` makes a raw table, `dbt run` a snapshot; "
            ~ "if it is in another schema or has another name, correct "
            ~ node.get("original_file_path", "the project") ~ "."
        ) }}
    {%- endif -%}
    {{ return(tested) }}
{%- endmacro %}


{% macro tested_table(relation, test) -%}
    {#- For tests that compare a table with its state, ledger and commits: a part of its rows proves nothing. -#}
    {%- if execute and relation is string -%}
        {{ exceptions.raise_compiler_error(
            strandline.test_on(relation) ~ " judges the whole table, batch by batch, so it cannot take a `where`. Remove "
            ~ "`where` from its config; acknowledge a known incident in config.meta.strandline.acknowledged."
        ) }}
    {%- endif -%}
    {{ return(strandline.tested_relation(relation)) }}
{%- endmacro %}


{% macro tested_rows(relation, row_condition=none) -%}
    {#-
        The rows that a test reads, ready for an alias: those that pass the condition and dbt's `where`, which
        comes as a subquery with an alias of its own.
    -#}
    {%- if not execute -%}
        {{ return(relation) }}
    {%- endif -%}
    {%- if relation is string -%}
        {%- set rows = modules.re.sub("\\)\\s*(as\\s+)?[A-Za-z_]\\w*\\s*$", ")", relation.strip()) -%}
    {%- else -%}
        {%- set rows = strandline.tested_relation(relation) -%}
    {%- endif -%}
    {%- if not row_condition -%}
        {{ return(rows) }}
    {%- endif -%}
    {{ return("(select * from " ~ rows ~ " as all_rows where " ~ row_condition ~ "\n)") }}
{%- endmacro %}


{% macro test_on(relation) -%}
    {#- The name of a test and its table for messages. -#}
    {%- set test = model.test_metadata.name if model is defined and model.resource_type == "test" and model.test_metadata
        else "of strandline" -%}
    {%- set node = strandline.tested_node(relation) if relation is string else {} -%}
    {%- set schema = node.get("schema", "") if relation is string else relation.schema -%}
    {%- set table = (node.get("identifier") or node.get("alias") or "") if relation is string else relation.identifier -%}
    {{ return("Test " ~ test ~ " on " ~ schema ~ "." ~ table) }}
{%- endmacro %}


{% macro tested_key(relation, primary_key, test) -%}
    {%- if not execute -%}
        {{ return(["primary_key"]) }}
    {%- endif -%}
    {%- set keys = strandline.key_columns(
        primary_key or strandline.tested_settings(relation).get("primary_key"), strandline.test_on(relation)
    ) -%}
    {%- do strandline.check_tested(relation, keys, "primary_key", primary_key) -%}
    {{ return(keys) }}
{%- endmacro %}


{% macro tested_optional_key(relation, primary_key) -%}
    {#- For tests that compare whole rows if there is no key. -#}
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
        Refuses a test that names a missing column, for which Spark would print its whole plan.
    -#}
    {%- if not execute or not names or model is not defined or model.resource_type != "test" -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set tested = strandline.tested_relation(relation) -%}
    {%- set columns = strandline.columns_told(tested) | map(attribute="name") | list -%}
    {%- set known = columns | map("lower") | list -%}
    {%- set node = strandline.tested_node(relation) -%}
    {%- set node_id = node.get("unique_id", "") -%}
    {%- for name in names if columns and name | lower not in known -%}
        {%- set shown = columns | reject("in", ["_cq_source_name", "_cq_sync_time", "_cq_batch", "_cq_seq",
            "_cq_row_hash", "_cq_deleted", "_cq_generation"]) | list -%}
        {{ exceptions.raise_compiler_error(
            "Test " ~ model.test_metadata.name ~ " on " ~ node_id.split(".")[0] ~ " "
            ~ (node_id.split(".")[2:] | join(".")) ~ ": its " ~ role ~ " '" ~ name ~ "' is not a column of "
            ~ tested.schema ~ "." ~ tested.identifier ~ ", which has " ~ shown[:20] | join(", ")
            ~ (", ..." if shown | length > 20 else "") ~ ". Correct " ~ role ~ " in "
            ~ (model.original_file_path if given else node.get("original_file_path", "the project")) ~ "."
        ) }}
    {%- endfor -%}
{%- endmacro %}


{% macro tested_order(relation, cursor_field, test) -%}
    {#- The cursor column, for tests that have nothing to check without one. -#}
    {%- if not execute -%}
        {{ return("cursor_field") }}
    {%- endif -%}
    {%- set cursor = strandline.tested_cursor(relation, cursor_field) -%}
    {%- if not cursor -%}
        {{ exceptions.raise_compiler_error(
            strandline.test_on(relation) ~ " needs a cursor_field: give it as an argument or in the source's "
            ~ "config.meta.strandline."
        ) }}
    {%- endif -%}
    {{ return(cursor) }}
{%- endmacro %}


{% macro tested_time(relation, cursor_field, test) -%}
    {#- The cursor column, which must be a time: a number is never in the future. -#}
    {%- set cursor = strandline.tested_order(relation, cursor_field, test) -%}
    {%- if execute -%}
        {%- set type = strandline.column_type(strandline.tested_relation(relation), cursor) -%}
        {%- if type not in ("date", "timestamp", "timestamp_ntz") -%}
            {{ exceptions.raise_compiler_error(
                strandline.test_on(relation) ~ ": the cursor " ~ cursor ~ " is "
                ~ ("of type " ~ type if type else "not among its columns")
                ~ ". The test needs a date or a timestamp: name such a column, or remove the test."
            ) }}
        {%- endif -%}
    {%- endif -%}
    {{ return(cursor) }}
{%- endmacro %}


{% macro tested_source(snapshot, raw, test) -%}
    {#- The raw table of a snapshot: the one that is named, otherwise the only source that its model reads. -#}
    {%- if raw is not none -%}
        {{ return(raw) }}
    {%- endif -%}
    {%- set reads = (strandline.tested_node(snapshot).get("depends_on") or {}).get("nodes") or [] -%}
    {%- set found = [] -%}
    {%- for source in graph.sources.values() if source.unique_id in reads -%}
        {%- do found.append(source) -%}
    {%- endfor -%}
    {%- if found | length != 1 -%}
        {{ exceptions.raise_compiler_error(
            strandline.test_on(snapshot) ~ ": its model reads " ~ found | length
            ~ " sources. Name the raw table: `raw: source('...', '...')`."
        ) }}
    {%- endif -%}
    {{ return(strandline.exactly(found[0].schema, found[0].identifier)) }}
{%- endmacro %}


{% macro column_type(relation, column) -%}
    {%- for candidate in strandline.columns_told(relation) if candidate.name | lower == column | lower -%}
        {{ return(candidate.dtype) }}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro pinned(relation) -%}
    {#-
        The relation as it is now, for every later statement. The loader publishes data, then state,
        then ledger: a test that pins the later table before it reads the earlier one never mistakes
        a running sync for a gap.
    -#}
    {%- set snapshot = strandline.current_snapshot(relation) -%}
    {{ return(relation ~ (" version as of " ~ snapshot if snapshot else "")) }}
{%- endmacro %}
