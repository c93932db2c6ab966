{% macro _is_testing() -%}
    {#- Returns whether there are rows to check. Returns false while dbt parses, with --empty, and
        if dbt only compiles the test of a table that has not been built yet. -#}
    {%- if execute and flags.WHICH in ("compile", "generate") -%}
        {%- set node = strandline._tested_node(none) -%}
        {{ return(not flags.EMPTY and (not node
            or strandline._exists(strandline._node_relation(node)))) }}
    {%- endif -%}
    {{ return(execute and not flags.EMPTY) }}
{%- endmacro %}


{% macro _nothing() -%}
    {#- Returns the SQL of a test that has nothing to check. -#}
    -- There are no rows to check, or the build has checked all rows and no table has changed since.
    select 'nothing' as problem where false
{%- endmacro %}


{% macro _subject(relation, test, unique_key=none, cursor_field=none, row_condition=none,
    needs=[]) -%}
    {#- Returns the input of a row test: {relation, rows, versions, key, cursor, names, types, mark,
        spec, incidents, owner}. If a deduped_ materialization built the table, `versions` are the
        raw versions that the model selects, up to the batch that the table shows. For other tables,
        `versions` are the table's rows. A `where` in the test's config restricts the rows in the
        same way as row_condition. -#}
    {%- set node = strandline._tested_node(relation) -%}
    {%- set owner = "Test " ~ test ~ " on " ~ (node.get("name") or relation) -%}
    {%- set table = strandline._tested_table(relation, node) -%}
    {%- if relation is not string and not strandline._exists(table) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": there is no table " ~ table ~ ". `loader run` creates a raw table, `dbt "
            ~ "run` a model's. If it is in another schema or has another name, correct "
            ~ node.get("original_file_path", "the project") ~ "."
        ) }}
    {%- endif -%}
    {%- set settings = strandline._settings(node) -%}
    {%- set deduped = node.get("config", {}).get("materialized", "").startswith("deduped_")
        and target.type == "spark" -%}
    {%- set mark = strandline._watermark(table) if deduped else none -%}
    {%- if mark is not none -%}
        {%- set subject = strandline._subject_of(strandline._spec_of(mark), table, mark.current) -%}
    {%- else -%}
        {#- For a test with a `where`, dbt renders a subquery with an alias. -#}
        {%- set rows = relation.rsplit(")", 1)[0] ~ ")" if relation is string else table -%}
        {%- set types = strandline._columns(table) -%}
        {%- set names = types.values() | map(attribute="name") | list -%}
        {%- set subject = {"relation": table, "rows": rows, "versions": rows, "names": names,
            "types": types} -%}
    {%- endif -%}
    {%- for condition in [row_condition, model.config.get("where") if mark is not none else none]
        if condition -%}
        {%- for name in ["rows", "versions"] -%}
            {%- do subject.update({name: "(select * from " ~ subject[name]
                ~ " as everything where " ~ condition ~ "\n)"}) -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- set subject = dict(subject,
        node=node,
        owner=owner,
        mark=mark,
        key=strandline._as_list(unique_key) or subject.get("key") or settings.unique_key,
        cursor=cursor_field or subject.get("cursor") or settings.get("cursor_field"),
        incidents=strandline._incidents(subject, test, owner),
    ) -%}
    {%- if "key" in needs -%}
        {%- do strandline._require_key(subject.key, owner) -%}
    {%- endif -%}
    {%- if "cursor" in needs and not subject.cursor -%}
        {{ exceptions.raise_compiler_error(
            owner ~ " needs a cursor_field: pass it as an argument, or set it in "
            ~ "config.meta.strandline."
        ) }}
    {%- endif -%}
    {%- do strandline._check_columns(subject.key, subject.names, owner, "unique_key") -%}
    {%- do strandline._check_columns(strandline._as_list(subject.cursor), subject.names, owner,
        "cursor_field") -%}
    {{ return(subject) }}
{%- endmacro %}


{% macro _cursor_type(subject) -%}
    {#- Returns the type of the cursor_field. The watermark contains only the type of the model's
        cursor_field, so the type of another column is read from the table. -#}
    {%- set name = subject.cursor | lower -%}
    {{ return((subject.types.get(name) or strandline._columns(subject.relation)[name]).type) }}
{%- endmacro %}


{% macro _tested_table(relation, node) -%}
    {#- Returns the node's table. With --defer, dbt renders the table of another target. -#}
    {%- if node and relation is string -%}
        {%- set own = strandline._node_relation(node) -%}
        {%- set deferred = node.get("defer_relation") -%}
        {%- if deferred and (flags.FAVOR_STATE or not strandline._exists(own)) -%}
            {{ return(own.incorporate(path={"schema": deferred.schema,
                "identifier": deferred.alias})) }}
        {%- endif -%}
        {{ return(own) }}
    {%- endif -%}
    {{ return(strandline._relation(relation.schema, relation.identifier) if target.type == "spark"
        else relation) }}
{%- endmacro %}


{% macro _tested_node(relation) -%}
    {#- Returns the model or source to which the current test is attached, or {} outside a test. -#}
    {%- if execute and model is defined and model.resource_type == "test" -%}
        {%- for unique_id in [model.attached_node] + model.depends_on.nodes -%}
            {%- set node = graph.nodes.get(unique_id) or graph.sources.get(unique_id) -%}
            {%- if node -%}
                {{ return(node) }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return({}) }}
{%- endmacro %}


{% macro _row_test_sql(name, relation, unique_key=none, cursor_field=none, row_condition=none,
    needs=[], arguments={}) -%}
    {#- Returns the SQL of a row test. -#}
    {%- if not strandline._is_testing() -%}
        {{ return(strandline._nothing()) }}
    {%- endif -%}
    {{ return(strandline._subject_test_sql(name, strandline._subject(
        relation, name, unique_key, cursor_field, row_condition, needs), arguments)) }}
{%- endmacro %}


{% macro _subject_test_sql(name, subject, arguments={}) -%}
    {{ return(strandline._check_sql({"name": name, "arguments": arguments, "subject": subject},
        strandline._asked_of(subject))) }}
{%- endmacro %}


{% macro _asked_of(subject) -%}
    {#- Returns the condition for the rows that a test must check, or none for all rows. Rows that
        have passed the check according to the table's properties are skipped. If the build has
        checked all rows, the condition is "false". If another program has written to the table or
        to its raw tables, all rows are checked. If this dbt run has built the table, the raw
        tables are not read again. -#}
    {%- set check = strandline._check_of(model, subject) -%}
    {%- set mark = subject.mark -%}
    {%- if check is none or mark is none or not mark.is_exact or mark.every_build
        or check.id not in mark.proved -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set proved = mark.proved[check.id] -%}
    {%- set changed = [] -%}
    {%- for table in mark.tables -%}
        {%- set relation = strandline._relation_of(table.name) -%}
        {%- set snapshot = table.snapshot if mark.is_of_this_run
            else strandline._snapshot(strandline._properties(relation)) -%}
        {%- if snapshot != table.snapshot
            and strandline._lineage({"relation": relation, "snapshot": snapshot},
            table.snapshot).foreign -%}
            {{ return(none) }}
        {%- endif -%}
        {%- if snapshot != table.snapshot or proved.get(table.name, 0) < table.batch -%}
            {%- do changed.append(table.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set failed = mark.failed_turns.get(check.id, []) -%}
    {{ return("false" if not changed and not failed and not strandline._prove_all()
        else strandline._asked(check.subject, proved, failed)) }}
{%- endmacro %}
