{% macro _build(kind) -%}
    {#- Builds the table of a deduped_latest or deduped_history model. Reads the new batches,
        chooses a rebuild, a merge or nothing, writes the table, and checks the written rows.
        Finally stores the watermark (the merged batches) and the verdicts (results of checks, see
        _checks.sql) in the table's properties. -#}
    {%- set owner = "Model '" ~ model.name ~ "' (deduped_" ~ kind ~ ")" -%}
    {%- set target_table = this.incorporate(type="table") -%}
    {%- set existing = strandline._find(this) -%}

    {{ run_hooks(pre_hooks) }}

    {%- set mark = strandline._watermark(existing) if existing is not none and existing.is_iceberg
        else none -%}
    {%- set raw_properties = {} -%}
    {%- if strandline._is_unchanged(kind, mark, raw_properties) -%}
        {%- set spec = strandline._spec_of(mark) -%}
        {%- set plan = {"step": "nothing", "reason": none, "is_unchanged": true} -%}
    {%- else -%}
        {%- set spec = strandline._spec(kind, sql, owner, existing, mark, raw_properties) -%}
        {%- set plan = strandline._plan(existing, mark, spec, owner) -%}
    {%- endif -%}
    {%- if plan.step != "nothing" -%}
        {%- do strandline._check_batches(spec, owner) -%}
    {%- endif -%}

    {%- if plan.step == "rebuild" -%}
        {%- if plan.reason -%}
            {{ log(owner ~ ": rebuilt, because " ~ plan.reason, info=true) }}
        {%- endif -%}
        {%- if existing is not none and (not existing.is_iceberg
            or strandline._lost_partition(existing, spec)) -%}
            {%- do adapter.drop_relation(existing) -%}
        {%- endif -%}
        {%- do strandline._write(strandline._create_sql(target_table, spec), "REBUILD", spec) -%}
    {%- elif plan.step == "merge" -%}
        {%- if config.get("contract").enforced -%}
            {%- do get_assert_columns_equivalent(strandline._expected_sql(spec)) -%}
        {%- endif -%}
        {%- set propagation = strandline._set_constraint_propagation(spec.columns, none) -%}
        {%- set merge = strandline._merge_latest if kind == "latest"
            else strandline._merge_history -%}
        {%- do strandline._write(merge(target_table, spec), "MERGE", spec) -%}
        {%- do strandline._set_constraint_propagation(spec.columns, propagation) -%}
    {%- else -%}
        {%- call noop_statement("main", "NO NEW BATCH", "NOOP", "0") -%}
            -- There is no batch after {{ strandline._heads(spec) }}.
        {%- endcall -%}
    {%- endif -%}
    {%- do strandline._finish(target_table, spec, mark, plan, owner) -%}

    {%- if config.get("grants") -%}
        {%- do apply_grants(target_table, config.get("grants"),
            should_revoke(existing, plan.step == "rebuild")) -%}
    {%- endif -%}
    {%- do strandline._persist_column_docs(target_table) -%}

    {{ run_hooks(post_hooks) }}

    {{ return({"relations": [target_table]}) }}
{%- endmacro %}


{% macro _write(sql, step, spec) -%}
    {%- call statement("main") -%}
        {{ sql }}
    {%- endcall -%}
    {{- store_raw_result(name="main", message=step ~ " to " ~ strandline._heads(spec), code=step,
        rows_affected="-1") -}}
{%- endmacro %}


{% macro _is_unchanged(kind, mark, raw_properties) -%}
    {#- Returns whether the model and its raw tables are unchanged since the table was built.
        Compares the configuration and, with one statement per raw table, the Iceberg snapshot. A
        column that was added to the raw table without a batch is ignored until the next batch. Adds
        the properties that it reads to `raw_properties`, so that they are read only once. -#}
    {%- set settings = strandline._settings(model) -%}
    {%- if mark is none or not mark.is_exact or mark.every_build or should_full_refresh()
        or flags.EMPTY
        or invocation_args_dict.get("sample") or settings.get("as_of") is not none
        or settings.get("delete_stale")
        or mark.config != strandline._config_digest(kind) -%}
        {{ return(false) }}
    {%- endif -%}
    {%- for table in mark.tables -%}
        {%- set relation = strandline._relation_of(table.name) -%}
        {%- if not strandline._exists(relation) -%}
            {{ return(false) }}
        {%- endif -%}
        {%- do raw_properties.update({table.name: strandline._properties(relation)}) -%}
        {%- if strandline._snapshot(raw_properties[table.name]) != table.snapshot -%}
            {{ return(false) }}
        {%- endif -%}
    {%- endfor -%}
    {{ return(true) }}
{%- endmacro %}


{% macro _config_digest(kind) -%}
    {#- Returns a digest of everything in the project that determines the contents of the table. -#}
    {%- set texts = {} -%}
    {%- do strandline._collect_parents(model.depends_on.nodes, [], texts) -%}
    {%- set settings = strandline._settings(model) | string -%}
    {{ return(local_md5(tojson([kind, sql, texts, settings, config.get("contract").enforced],
        sort_keys=true))) }}
{%- endmacro %}


{% macro _spec(kind, sql, owner, existing, mark, raw_properties) -%}
    {#- Returns the spec, which determines the contents of the table: {kind, sql, types, columns,
        key, cursor, row_filter, tables, union, every_build, is_plain, floor, refreshes, strict,
        config, definition, is_small}. It is fixed before the first statement, because a loader may
        be running. The entries of `tables` are described in _raw_table(). -#}
    {%- set settings = strandline._settings(model) -%}
    {%- set strict = settings.get("strict", true) -%}
    {%- do strandline._check_flags(existing, owner) -%}
    {%- do strandline._check_text(kind, sql, settings, strict, owner) -%}
    {%- set nodes, texts = [], {} -%}
    {%- do strandline._collect_parents(model.depends_on.nodes, nodes, texts) -%}
    {%- do strandline._check_synced(nodes, owner) -%}
    {%- set types = strandline._select_types(sql) -%}
    {%- set columns = types.values() | map(attribute="name") | list -%}
    {%- set key = strandline._require_key(settings.unique_key, owner) -%}
    {%- do strandline._check_required_columns(columns, key, settings.get("cursor_field"), owner) -%}
    {%- set inputs = strandline._inputs(sql, types, nodes, texts, raw_properties, owner) -%}
    {%- do strandline._check_text(kind, texts.values() | join(" "), {}, strict, owner
        ~ ", in a view that it reads") -%}
    {%- set spec = {
        "kind": kind,
        "sql": sql,
        "types": types,
        "columns": columns,
        "key": key,
        "cursor": settings.get("cursor_field"),
        "row_filter": settings.get("row_filter"),
        "tables": inputs.tables,
        "union": inputs.tables | length > 1,
        "every_build": inputs.every_build,
        "is_plain": inputs.is_plain,
        "floor": none,
        "refreshes": [],
        "strict": strict,
        "config": strandline._config_digest(kind),
        "definition": local_md5(tojson([
            strandline._without_unions(sql), settings.get("row_filter"), texts
        ], sort_keys=true)),
    } -%}
    {%- do strandline._check_raw_key(spec, owner) -%}
    {%- do strandline._read_new_batches(spec, mark) -%}
    {%- if settings.get("as_of") is not none -%}
        {%- for table in spec.tables -%}
            {%- do strandline._check_not_compacted(table.relation, settings.as_of, owner) -%}
            {%- set batch = strandline._batch_as_of(table.relation, settings.as_of, owner) -%}
            {%- do table.update({"head": [table.head, batch] | min}) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- if settings.get("delete_stale") -%}
        {%- do strandline._add_full_refreshes(spec, owner) -%}
    {%- endif -%}
    {%- do spec.update({"is_small": spec.tables | sum(attribute="rows") <= var(
        "strandline__rebuild_up_to_rows", 100000) | int}) -%}
    {{ return(spec) }}
{%- endmacro %}


{% macro _expected_sql(spec, versions=none) -%}
    {#- Returns the SELECT for the whole table, or for the given versions. -#}
    {%- set versions = versions or "(\n" ~ spec.sql ~ "\n)" -%}
    {%- set up_to_head = "(\nselect " ~ strandline._one_task(spec) ~ "* from " ~ versions
        ~ " as everything\nwhere " ~ strandline._batches(spec.tables, up_to="head") ~ "\n)" -%}
    {%- if spec.kind == "latest" -%}
        {{ return(strandline._latest_sql(up_to_head, spec.key, spec.cursor, spec.union,
            strandline._shown(spec))) }}
    {%- endif -%}
    {{ return(strandline._history_sql(
        strandline._with_vanished(up_to_head, spec.refreshes, spec.columns, spec.key),
        spec.key,
        spec.cursor,
        spec.union,
        spec.row_filter
    )) }}
{%- endmacro %}


{% macro _one_task(spec) -%}
    {#- Returns a hint for reading small raw tables in one task. Grouping the rows then needs no
        shuffle, which would take longer than reading the rows. -#}
    {{ return("/*+ coalesce(1) */ " if spec.get("is_small") else "") }}
{%- endmacro %}


{% macro _shown(spec) -%}
    {#- Returns the condition for showing a key's newest version if this version is not a tombstone,
        or none if there is no condition. -#}
    {%- set conditions = [spec.row_filter, strandline._from_generations(spec.tables)
        if spec.kind == "latest" else none] | select | list -%}
    {{ return("(" ~ conditions | join("\n) and (") ~ "\n)" if conditions else none) }}
{%- endmacro %}


{% macro _plan(existing, mark, spec, owner) -%}
    {#- Returns {step, reason}. The step is rebuild, merge or nothing. A rebuild is always correct,
        but a merge is cheaper for a large table. -#}
    {%- if existing is none or should_full_refresh() -%}
        {{ return({"step": "rebuild", "reason": none}) }}
    {%- endif -%}
    {%- set reason = strandline._reason_to_rebuild(mark, spec) -%}
    {%- set new = [] -%}
    {%- for table in spec.tables if table.head > table.low -%}
        {%- do new.append(table.name) -%}
    {%- endfor -%}
    {%- if not reason and spec.every_build -%}
        {%- set reason = spec.every_build -%}
    {%- endif -%}
    {%- set rebuilds_small = new and spec.is_small and spec.kind == "latest"
        and config.get("full_refresh") is not false -%}
    {%- if not reason and mark is not none
        and not (rebuilds_small and config.get("on_schema_change") != "fail") -%}
        {%- set reason = strandline._follow_schema(existing, mark, spec, owner) -%}
    {%- endif -%}
    {%- if reason and config.get("full_refresh") is false -%}
        {{ exceptions.raise_compiler_error(
            owner ~ " would have to be rebuilt, because " ~ reason ~ ", and its config "
            ~ "`full_refresh: false` forbids that. Remove the setting for one build; to keep the "
            ~ "rows that it shows now, copy the table first."
        ) }}
    {%- elif reason -%}
        {{ return({"step": "rebuild", "reason": reason}) }}
    {%- elif not new -%}
        {{ return({"step": "nothing", "reason": none}) }}
    {%- endif -%}
    {{ return({"step": "rebuild" if rebuilds_small else "merge", "reason": none}) }}
{%- endmacro %}


{% macro _reason_to_rebuild(mark, spec) -%}
    {#- Returns why a merge is not sufficient to update the table, or none if a merge suffices. -#}
    {%- if mark is none -%}
        {{ return("another materialization built it") }}
    {%- elif mark.kind != spec.kind -%}
        {{ return("it was built as deduped_" ~ mark.kind) }}
    {%- elif mark.key != spec.key or mark.cursor != spec.cursor -%}
        {{ return("its unique_key or cursor_field changed") }}
    {%- elif mark.tables | map(attribute="name") | list != spec.tables | map(
        attribute="name") | list -%}
        {{ return("it previously read other raw tables") }}
    {%- elif mark.definition != spec.definition -%}
        {{ return("its SELECT, its row_filter or a view that it reads changed") }}
    {%- elif mark.floor != spec.floor or spec.kind == "history"
        and mark.refreshes != spec.refreshes -%}
        {{ return("a complete full refresh changed which keys delete_stale hides") }}
    {%- endif -%}
    {%- for table in spec.tables -%}
        {%- set before = mark.tables[loop.index0] -%}
        {%- if before.id != table.id -%}
            {{ return(table.name ~ " was dropped and loaded again") }}
        {%- elif table.head < table.low -%}
            {%- set shown, head = table.low, table.head -%}
            {%- do strandline._read_batches(table, 0) -%}
            {%- do table.update({"head": head}) -%}
            {{ return(table.name ~ " ends at batch " ~ table.head ~ ", and the table shows batch "
                ~ shown) }}
        {%- elif before.snapshot != table.snapshot and before.snapshot
            and not strandline._lineage(table, before.snapshot).is_ancestor -%}
            {{ return(table.name ~ " was rolled back or replaced") }}
        {%- elif (spec.row_filter or not spec.is_plain)
            and before.types != local_md5(tojson(table.types, sort_keys=true)) -%}
            {{ return("a column of " ~ table.name ~ " is new or has another type, and the SELECT "
                ~ "or row_filter may compute from it") }}
        {%- endif -%}
    {%- endfor -%}
    {%- if not mark.is_exact -%}
        {{ return("something else wrote to it, or its last build was interrupted") }}
    {%- endif -%}
    {{ return(none) }}
{%- endmacro %}


{% macro _create_sql(target_table, spec) -%}
    {%- set properties = {
        "format-version": "2",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "commit.manifest.min-count-to-merge": "8",
    } -%}
    {%- do properties.update(config.get("tblproperties") or {}) -%}
    {#- Omits the snapshot. If the build is interrupted before _finish(), the next build therefore
        rebuilds the table. -#}
    {%- do properties.update(strandline._watermark_properties(spec, none, {})) -%}
    {%- set select_sql = strandline._expected_sql(spec) -%}
    create or replace table {{ target_table }}
    {%- if config.get("contract").enforced %}
    {{ get_assert_columns_equivalent(select_sql) }}
    {%- set select_sql = get_select_subquery(select_sql) %}
    {%- endif %}
    using iceberg
    {%- if spec.kind == "history" and not config.get("partition_by") %}
    partitioned by (is_current)
    {%- else %}
    {{ partition_cols(label="partitioned by") }}
    {%- endif %}
    tblproperties (
        {%- for name, value in properties.items() %}
        {{ strandline._literal(name) }} = {{ strandline._literal(value) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
    {%- if config.persist_relation_docs() and model.description %}
    comment {{ strandline._literal(model.description) }}
    {%- endif %}
    as
    {{ select_sql }}
{%- endmacro %}


{% macro _set_constraint_propagation(columns, restore) -%}
    {#- Disables constraint propagation for tables with many columns. With hundreds of non-null
        columns, Spark would take a minute to plan a merge of one row. Returns the previous setting,
        which the caller passes as `restore` afterwards. -#}
    {%- if columns | length <= 100 -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set name = "spark.sql.constraintPropagation.enabled" -%}
    {%- set before = strandline._setting(name) -%}
    {%- do run_query("set " ~ name ~ "=" ~ (restore or "false")) -%}
    {{ return(before) }}
{%- endmacro %}


{% macro _heads(spec) -%}
    {%- set heads = [] -%}
    {%- for table in spec.tables -%}
        {%- do heads.append("batch " ~ table.head ~ (" of " ~ table.name if spec.union else "")) -%}
    {%- endfor -%}
    {{ return(heads | join(", ")) }}
{%- endmacro %}


{% macro _lost_partition(existing, spec) -%}
    {#- Returns whether the table lacks a column by which it must be partitioned. A `create or
        replace` by another program may have removed the column. Iceberg retains the old partition
        field and rejects a new column with the same name. -#}
    {%- set by = strandline._as_list(config.get("partition_by")
        or (["is_current"] if spec.kind == "history" else [])) -%}
    {%- set present = strandline._columns(existing) if by else {} -%}
    {%- for name in by if "(" not in name and name | lower not in present -%}
        {{ return(true) }}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}


{% macro _persist_column_docs(target_table) -%}
    {#- Writes only comments that differ, so that a build without new batches does not change the
        table. -#}
    {%- if config.persist_column_docs() and model.columns -%}
        {%- set stored = {} -%}
        {%- for row in run_query("describe table " ~ target_table) -%}
            {%- do stored.update({row[0] | lower: row[2] or ""}) -%}
        {%- endfor -%}
        {%- for column in model.columns.values() -%}
            {%- set comment = stored.get(column.name | lower) -%}
            {%- if comment is not none and comment != column.description -%}
                {%- do strandline._run(
                    "alter table " ~ target_table ~ " alter column "
                    ~ strandline._quote(column.name)
                    ~ " comment " ~ strandline._literal(column.description)
                ) -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro %}
