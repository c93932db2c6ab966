{% macro build_from_batches(kind) -%}
    {#-
        What the deduped_ materializations share: the first run builds from all batches, later runs
        merge what came after the watermark. They pass in what differs: latest_kind(), history_kind().
    -#}
    {%- set owner = "Model '" ~ model.name ~ "' (" ~ kind.name ~ ")" -%}
    {%- set target = this.incorporate(type="table") -%}
    {%- set existing = strandline.existing(this) -%}

    {{ run_hooks(pre_hooks) }}

    {%- do strandline.check_all_rows_asked(existing, target, owner) -%}

    {%- for node in strandline.read_nodes(model.depends_on.nodes) -%}
        {%- do strandline.check_name(strandline.relation_of(node) | string) -%}
        {%- do strandline.check_is_synced(node, owner) -%}
    {%- endfor -%}
    {%- do strandline.check_select_text(sql, owner) -%}
    {%- do strandline.check_row_filter(kind, sql, owner) -%}
    {%- set selected = strandline.query_types(sql) -%}
    {%- do strandline.check_column_types(selected, owner) -%}
    {%- set columns = selected.values() | map(attribute="name") | list -%}
    {%- for name in columns if "${" in name -%}
        {%- do strandline.check_name(name) -%}
    {%- endfor -%}
    {%- set goal = strandline.goal(sql, selected, kind, owner) -%}
    {%- set covered = strandline.watermark(existing) if existing is not none and existing.is_iceberg else none -%}
    {%- set plan = strandline.build_plan(existing, covered, goal, owner) -%}
    {%- if plan.step != "nothing" -%}
        {%- do strandline.check_reads(sql, goal, plan, owner) -%}
        {%- do strandline.check_computed(sql, goal, covered, plan, owner) -%}
    {%- endif -%}
    {%- if plan.step != "build" -%}
        {%- if plan.step == "merge" and config.get("contract").enforced -%}
            {%- do get_assert_columns_equivalent(kind.select(sql, goal)) -%}
        {%- endif -%}
        {%- set differing = strandline.follow_schema(target, selected, owner, covered.types) -%}
        {%- if differing -%}
            {%- do plan.update({"step": "build", "reason": "the type of " ~ differing | join(", ") ~ " changed"}) -%}
            {%- do strandline.check_may_build(plan.reason, owner) -%}
        {%- endif -%}
    {%- endif -%}
    {%- if plan.step != "nothing" -%}
        {%- do strandline.check_whole_keys(sql, goal, plan, owner) -%}
        {%- do strandline.check_deleted_keys(sql, goal, plan, owner) -%}
    {%- endif -%}

    {%- if plan.step == "build" -%}
        {%- if plan.reason -%}
            {{ log(owner ~ ": rebuilt: " ~ plan.reason, info=true) }}
        {%- endif -%}
        {%- if existing is not none and (not existing.is_iceberg or strandline.lost_partition(existing, kind)) -%}
            {%- do adapter.drop_relation(existing) -%}
        {%- endif -%}
        {%- call statement("main") -%}
            {{ strandline.build_sql(target, kind.select(sql, goal), sql, goal) }}
        {%- endcall -%}
        {%- do strandline.set_watermark(target, goal, sql) -%}
        {{- store_raw_result(name="main", message="BUILD to " ~ strandline.heads_told(goal), code="BUILD", rows_affected="-1") -}}
    {%- elif plan.step == "merge" -%}
        {%- do goal.update({"stored": strandline.followed_columns(covered.types, selected)}) -%}
        {%- set inferred = strandline.infer_constraints(columns, none) -%}
        {%- call statement("main") -%}
            {{ kind.merge(target, sql, goal) }}
        {%- endcall -%}
        {%- do strandline.infer_constraints(columns, inferred) -%}
        {%- set snapshot = strandline.keep_compact(target, covered.current, owner, goal, sql) -%}
        {%- do strandline.set_watermark(target, goal, sql, snapshot) -%}
        {{- store_raw_result(name="main", message="MERGE to " ~ strandline.heads_told(goal), code="MERGE", rows_affected="-1") -}}
    {%- else -%}
        {%- call noop_statement("main", "NO NEW BATCH", "NOOP", "0") -%}
            -- nothing after {{ strandline.heads_told(goal) }}
        {%- endcall -%}
    {%- endif -%}

    {%- if config.get("grants") -%}
        {%- do apply_grants(target, config.get("grants"), should_revoke(existing, plan.step == "build")) -%}
    {%- endif -%}
    {%- do strandline.persist_snapshot_docs(target) -%}

    {{ run_hooks(post_hooks) }}

    {{ return({"relations": [target]}) }}
{%- endmacro %}


{% macro lost_partition(existing, kind) -%}
    {#-
        Whether a table has lost a column that it must be partitioned by, as after a foreign `create or
        replace`: Iceberg remembers the old column's partitions and refuses a new column of that name.
    -#}
    {%- set by = config.get("partition_by") or kind.partition_by -%}
    {%- set present = strandline.column_names(existing) | map("lower") | list -%}
    {%- for name in ([by] if by is string else by) if modules.re.match("^\\w+$", name) and name | lower not in present -%}
        {{ return(true) }}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}


{% macro goal(sql, selected, kind, owner) -%}
    {#-
        What the table has to cover: {kind, columns, primary_key, cursor_field, row_filter, tables, others,
        floor, generation, refreshes, computes, definition}. Fixed before the first statement, as a loader may be running.
        `tables`: see read_tables(); `others`: see read_others(). build_plan() adds `low` to each table, the batch
        up to which it is covered, and `exact` to the goal: the model's table is as the build of its watermark
        left it. `computes`: its SELECT may do more than take raw's columns as they are. Before a merge, `stored` are
        the columns of the model's table.
    -#}
    {%- set primary_key = strandline.key_columns(config.get("primary_key"), owner) -%}
    {%- set cursor_field = config.get("cursor_field") -%}
    {%- set columns = selected.values() | map(attribute="name") | list -%}
    {%- do strandline.check_version_columns(columns, primary_key, cursor_field, kind.added_columns, owner) -%}
    {%- set views = strandline.read_views(model.depends_on.nodes) -%}
    {%- set tables = strandline.read_tables(sql, selected, views, owner) -%}
    {%- set raw_columns = tables | map(attribute="columns") | sum(start=[]) -%}
    {%- do strandline.check_repeatable(sql, raw_columns, owner) -%}
    {%- for unique_id, text in views.items() if text -%}
        {%- do strandline.check_repeatable(text, raw_columns, owner, "the view " ~ graph.nodes[unique_id].name) -%}
    {%- endfor -%}
    {%- set goal = {
        "kind": kind,
        "columns": columns,
        "primary_key": primary_key,
        "cursor_field": cursor_field,
        "row_filter": config.get("row_filter"),
        "tables": tables,
        "others": strandline.read_others(tables, owner),
        "floor": none,
        "generation": 0,
        "refreshes": [],
        "stored": none,
        "computes": not strandline.selects_whole_table(sql, tables) or config.get("row_filter") is not none,
        "definition": local_md5(strandline.without_unions(
            tojson([strandline.as_written(sql), config.get("row_filter"), views], sort_keys=true)
        )),
    } -%}
    {%- do strandline.check_time_travel(sql, views, goal, owner) -%}
    {%- if kind.keeps_versions -%}
        {%- do goal.update({"generation": strandline.newest_generation(sql, tables)}) -%}
    {%- endif -%}
    {%- for table in tables if table.relation is not none -%}
        {%- do strandline.check_shared_key(table, primary_key, owner) -%}
    {%- endfor -%}
    {%- if config.get("as_of") is not none -%}
        {%- for table in strandline.asked_tables(tables, "as_of", owner) -%}
            {%- do strandline.check_not_compacted(table.relation, config.get("as_of"), owner) -%}
            {%- do table.update({"head": [table.head, strandline.batch_at(table.relation, config.get("as_of"), owner)] | min}) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- set delete_stale = config.get("delete_stale", false) -%}
    {%- if delete_stale is not none and delete_stale is not boolean -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": delete_stale is '" ~ delete_stale ~ "', not true or false. Write it without quotes; from a variable, "
            ~ "add `| as_bool` or compare it: delete_stale=(env_var('DELETE_STALE', 'false') == 'true')."
        ) }}
    {%- elif delete_stale -%}
        {%- for table in strandline.asked_tables(tables, "delete_stale", owner) if table.head -%}
            {%- do strandline.check_ledger(table.relation, owner) -%}
            {%- do table.update({"refreshes": strandline.complete_refreshes(table.relation, table.head, owner)}) -%}
            {%- do table.update({"floor": strandline.refresh_floor(table.refreshes)}) -%}
        {%- endfor -%}
        {%- do strandline.add_refreshes(goal) -%}
    {%- endif -%}
    {{ return(goal) }}
{%- endmacro %}


{% macro newest_generation(sql, tables) -%}
    {#- Of all that is read, or more: lower generations may have been overruled. Iceberg answers from its metadata. -#}
    {%- set generations = [0] -%}
    {%- for table in tables -%}
        {%- set versions = table.relation or "(\n" ~ sql ~ "\n)" -%}
        {%- set found = run_query("select max(_cq_generation) from " ~ versions ~ " as versions").columns[0].values()[0] -%}
        {%- do generations.append(found | int if found is not none else 0) -%}
    {%- endfor -%}
    {{ return(generations | max) }}
{%- endmacro %}


{% macro add_refreshes(goal) -%}
    {#- The refreshes and floors of all tables, each with its table's name if there are several. -#}
    {%- set many = goal.tables | length > 1 -%}
    {%- set floors = {} -%}
    {%- for table in goal.tables -%}
        {%- do floors.update({table.name: table.floor}) -%}
        {%- for refresh in table.refreshes -%}
            {%- do goal.refreshes.append(dict(refresh, table=table.name) if many else refresh) -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- do goal.update({"floor": floors if many else goal.tables[0].floor}) -%}
{%- endmacro %}


{% macro infer_constraints(columns, as_it_was) -%}
    {#-
        In every step of a plan, Spark relates each column that cannot be null to every other one: with hundreds
        of columns, a merge of one row takes a minute to plan. Returns the previous setting.
    -#}
    {%- if columns | length <= 100 -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set name = "spark.sql.constraintPropagation.enabled" -%}
    {%- set before = run_query("set " ~ name).columns[1].values()[0] -%}
    {%- do run_query("set " ~ name ~ "=" ~ (as_it_was or "false")) -%}
    {{ return(before) }}
{%- endmacro %}


{% macro heads_told(goal) -%}
    {%- set told = [] -%}
    {%- for table in goal.tables -%}
        {%- do told.append("batch " ~ table.head ~ (" of " ~ table.name if goal.tables | length > 1 else "")) -%}
    {%- endfor -%}
    {{ return(told | join(", ")) }}
{%- endmacro %}


{% macro kind_of(materialization) -%}
    {#- The kind of an existing table, by the name that its build stored. -#}
    {{ return(strandline.history_kind() if materialization == "deduped_history" else strandline.latest_kind()) }}
{%- endmacro %}


{% macro order_of(goal, alias=none) -%}
    {{ return(strandline.version_order(goal.cursor_field, alias, goal.tables | map(attribute="name") | list)) }}
{%- endmacro %}


{% macro check_version_columns(columns, primary_key, cursor_field, added_columns, owner) -%}
    {%- set known = columns | map("lower") | list -%}
    {%- set missing = [] -%}
    {%- set needed = ["_cq_batch", "_cq_seq", "_cq_generation", "_cq_deleted"] -%}
    {%- set needed = needed + (["_cq_row_hash", "_cq_sync_time"] if added_columns else []) -%}
    {%- for name in needed if name not in known -%}
        {%- do missing.append(name) -%}
    {%- endfor -%}
    {%- if missing -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT lacks " ~ missing | join(", ") ~ ". It must read one of the loader's raw tables and keep "
            ~ "the _cq_ columns, as in: select * from {{ source('shop', 'orders') }}"
        ) }}
    {%- endif -%}
    {%- for name in added_columns if name in known -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT has a column " ~ name ~ ", which the history adds itself. Give the column another "
            ~ "name in the SELECT."
        ) }}
    {%- endfor -%}
    {%- do strandline.check_columns(primary_key, columns, owner, "primary_key") -%}
    {%- if cursor_field -%}
        {%- do strandline.check_columns([cursor_field], columns, owner, "cursor_field") -%}
    {%- endif -%}
{%- endmacro %}


{% macro build_sql(target, select_sql, sql, goal) -%}
    {%- set properties = {
        "format-version": "2",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "commit.manifest.min-count-to-merge": "8",
    } -%}
    {%- do properties.update(config.get("tblproperties") or {}) -%}
    {%- if properties["format-version"] | string == "1" -%}
        {{ exceptions.raise_compiler_error(
            "Model '" ~ model.name ~ "' (" ~ goal.kind.name ~ "): tblproperties sets format-version 1, in which Iceberg cannot "
            ~ "delete rows, as a merge must. Set 2 or a later one, or leave it out."
        ) }}
    {%- endif -%}
    {#- Still without a snapshot id: enough to recognize our table after a crash before set_watermark(). -#}
    {%- do properties.update({
        "strandline.materialization": goal.kind.name,
        "strandline.select": strandline.veiled(sql),
        "strandline.watermark": strandline.watermark_text(goal),
    }) -%}
    create or replace table {{ target }}
    {%- if config.get("contract").enforced %}
    {{ get_assert_columns_equivalent(select_sql) }}
    {%- set select_sql = get_select_subquery(select_sql) %}
    {%- endif %}
    using iceberg
    {%- if goal.kind.partition_by and not config.get("partition_by") %}
    partitioned by ({{ goal.kind.partition_by | join(", ") }})
    {%- else %}
    {{ partition_cols(label="partitioned by") }}
    {%- endif %}
    tblproperties (
        {%- for name, value in properties.items() %}
        {{ strandline.text_literal(name) }} = {{ strandline.text_literal(value) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
    {%- if config.persist_relation_docs() and model.description %}
    comment {{ strandline.text_literal(model.description) }}
    {%- endif %}
    as
    {{ select_sql }}
{%- endmacro %}


{% macro same_key(primary_key, left, right) -%}
    {%- for key in primary_key -%}
        {{ left }}.{{ strandline.quoted(key) }} <=> {{ right }}.{{ strandline.quoted(key) }}
        {{- " and " if not loop.last -}}
    {%- endfor -%}
{%- endmacro %}


{% macro delta_value(column, known) -%}
    {#- A column that the model no longer selects stays in the table, and is null in new rows. -#}
    {{- "delta." ~ strandline.quoted(column) if column | lower in known else "null" -}}
{%- endmacro %}
