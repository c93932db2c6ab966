{% macro build_from_batches(materialization, added_columns) -%}
    {#-
        What the deduped_ materializations share: the first run builds from all batches, later ones
        merge what came after the watermark. They differ in these two statements only.
    -#}
    {%- set owner = "Model '" ~ model.name ~ "' (" ~ materialization ~ ")" -%}
    {%- set target = this.incorporate(type="table") -%}
    {%- set existing = load_relation(this) -%}

    {{ run_hooks(pre_hooks) }}

    {%- if flags.EMPTY and existing is not none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": --empty would empty " ~ target ~ ". Leave --empty away, or build into a schema of its own "
            ~ "(--target)."
        ) }}
    {%- endif -%}

    {%- set columns = get_columns_in_query(sql) -%}
    {%- set goal = strandline.goal(sql, columns, materialization, added_columns, owner) -%}
    {%- set covered = strandline.watermark(existing) if existing is not none and existing.is_iceberg else none -%}
    {%- set plan = strandline.build_plan(covered, goal, owner) -%}
    {%- if plan.step == "merge" -%}
        {%- set differing = strandline.follow_schema(target, sql, columns) -%}
        {%- if differing -%}
            {%- do plan.update({"step": "build", "reason": "the type of " ~ differing | join(", ") ~ " changed"}) -%}
        {%- endif -%}
    {%- endif -%}

    {%- if plan.step == "build" -%}
        {%- if plan.reason -%}
            {{ log(owner ~ ": built anew: " ~ plan.reason, info=true) }}
        {%- endif -%}
        {%- if existing is not none and not existing.is_iceberg -%}
            {%- do adapter.drop_relation(existing) -%}
        {%- endif -%}
        {%- call statement("main") -%}
            {{ strandline.build_sql(target, strandline.versions_select(sql, goal, columns), goal) }}
        {%- endcall -%}
        {%- do strandline.set_watermark(target, goal) -%}
        {{- store_raw_result(name="main", message="BUILD to batch " ~ (goal.head or 0), code="BUILD", rows_affected="-1") -}}
    {%- elif plan.step == "merge" -%}
        {%- call statement("main") -%}
            {{ strandline.versions_merge(target, sql, plan.low, goal, columns, covered.exact) }}
        {%- endcall -%}
        {%- do strandline.keep_compact(target) -%}
        {%- do strandline.set_watermark(target, goal) -%}
        {{- store_raw_result(name="main", message="MERGE to batch " ~ goal.head, code="MERGE", rows_affected="-1") -}}
    {%- else -%}
        {%- call noop_statement("main", "NO NEW BATCH", "NOOP", "0") -%}
            -- nothing after batch {{ plan.low }}
        {%- endcall -%}
    {%- endif -%}

    {%- if config.get("grants") -%}
        {%- do apply_grants(target, config.get("grants"), should_revoke(existing, plan.step == "build")) -%}
    {%- endif -%}
    {%- do strandline.persist_snapshot_docs(target) -%}

    {{ run_hooks(post_hooks) }}

    {{ return({"relations": [target]}) }}
{%- endmacro %}


{% macro goal(sql, columns, materialization, added_columns, owner) -%}
    {#-
        What the table is to cover: {materialization, primary_key, cursor_field, head, generation,
        refreshes, floor, raw, raw_ids}. Fixed before the first statement: a loader may run meanwhile.
    -#}
    {%- set primary_key = strandline.key_columns(config.get("primary_key"), owner) -%}
    {%- set cursor_field = config.get("cursor_field") -%}
    {%- do strandline.check_version_columns(columns, primary_key, cursor_field, added_columns, owner) -%}
    {#- Before the head: a raw table that is dropped in between is then found by the next build. -#}
    {%- set raw_ids = {} -%}
    {%- for relation in strandline.model_sources() -%}
        {%- do raw_ids.update({relation.schema ~ "." ~ relation.identifier: strandline.raw_identity(relation)}) -%}
        {%- do strandline.check_shared_key(relation, primary_key, owner) -%}
    {%- endfor -%}
    {%- set newest = run_query(
        "select max(_cq_batch), max(_cq_generation) from (\n" ~ sql ~ "\n) as versions"
    ).rows[0] -%}
    {%- set goal = {
        "materialization": materialization,
        "primary_key": primary_key,
        "cursor_field": cursor_field,
        "head": newest[0] | int if newest[0] is not none else none,
        "generation": newest[1] | int if newest[1] is not none else 0,
        "refreshes": [],
        "floor": none,
        "raw": raw_ids | list,
        "raw_ids": raw_ids,
    } -%}
    {%- if config.get("as_of") is not none and goal.head is not none -%}
        {%- set source = strandline.model_source(owner, "as_of") -%}
        {%- do strandline.check_not_compacted(source, config.get("as_of"), owner) -%}
        {%- do goal.update({"head": [goal.head, strandline.batch_at(source, config.get("as_of"), owner)] | min}) -%}
    {%- endif -%}
    {%- if config.get("delete_stale", false) and goal.head is not none -%}
        {%- do goal.update({"refreshes": strandline.complete_refreshes(
            strandline.model_source(owner, "delete_stale"), goal.head, owner
        )}) -%}
        {%- do goal.update({"floor": strandline.refresh_floor(goal.refreshes)}) -%}
    {%- endif -%}
    {{ return(goal) }}
{%- endmacro %}


{% macro versions_select(sql, goal, columns) -%}
    {%- if goal.materialization == "deduped_history" -%}
        {{ strandline.history_select(sql, goal, columns) }}
    {%- else -%}
        {{ strandline.latest_select(sql, goal) }}
    {%- endif -%}
{%- endmacro %}


{% macro versions_merge(target, sql, low, goal, columns, exact) -%}
    {%- if goal.materialization == "deduped_history" -%}
        {{ strandline.history_merge(target, sql, low, goal, columns, exact) }}
    {%- else -%}
        {{ strandline.latest_merge(target, sql, low, goal, columns) }}
    {%- endif -%}
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
            owner ~ ": its SELECT lacks " ~ missing | join(", ") ~ ". It must read a raw table of the loader and keep "
            ~ "the _cq_ columns, as in: select * from {{ source('shop', 'orders') }}"
        ) }}
    {%- endif -%}
    {%- for name in added_columns if name in known -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT has a column " ~ name ~ ", which the history writes itself. Give it another name "
            ~ "in the SELECT."
        ) }}
    {%- endfor -%}
    {%- do strandline.check_columns(primary_key, columns, owner, "primary_key") -%}
    {%- if cursor_field -%}
        {%- do strandline.check_columns([cursor_field], columns, owner, "cursor_field") -%}
    {%- endif -%}
{%- endmacro %}


{% macro build_plan(covered, goal, owner) -%}
    {#- Whether to build, to merge or to do nothing; a build is always right, a merge is cheap. -#}
    {%- set plan = {"step": "build", "reason": none, "low": none} -%}
    {%- if covered is none or should_full_refresh() -%}
        {{ return(plan) }}
    {%- endif -%}
    {%- set head = goal.head or 0 -%}
    {%- if covered.materialization != goal.materialization -%}
        {%- do plan.update({"reason": "it was materialized as " ~ covered.materialization}) -%}
    {%- elif covered.primary_key != goal.primary_key or covered.cursor_field != goal.cursor_field -%}
        {%- do plan.update({"reason": "primary_key or cursor_field changed"}) -%}
    {%- elif strandline.reloaded(covered, goal) -%}
        {%- set reason = strandline.reloaded(covered, goal) ~ " was dropped and loaded anew" -%}
        {%- if config.get("full_refresh") is false -%}
            {{ exceptions.raise_compiler_error(
                owner ~ ": " ~ reason ~ ": " ~ this ~ " shows rows that may be gone, and its config `full_refresh: "
                ~ "false` forbids building it anew. Remove that for one build; or keep the table under another name "
                ~ "and drop it here."
            ) }}
        {%- endif -%}
        {%- do plan.update({"reason": reason}) -%}
    {%- elif covered.generation_floor != goal.floor -%}
        {%- do plan.update({"reason": "delete_stale: a full refresh changed what it hides"}) -%}
    {%- elif goal.floor is not none and not covered.exact -%}
        {%- do plan.update({"reason": "delete_stale: the table was written by others"}) -%}
    {%- elif head < covered.batch -%}
        {%- do plan.update({"reason": "what it reads ends at batch " ~ head ~ ", it was built to batch " ~ covered.batch}) -%}
    {%- elif head == covered.batch -%}
        {%- do plan.update({"step": "nothing", "low": covered.batch}) -%}
    {%- else -%}
        {%- do plan.update({"step": "merge", "low": covered.batch}) -%}
    {%- endif -%}
    {{ return(plan) }}
{%- endmacro %}


{% macro reloaded(covered, goal) -%}
    {#- The raw tables that are others than those the table was built from, under the same names. -#}
    {%- set before = covered.get("raw_ids", {}) -%}
    {%- set names = [] -%}
    {%- for name, identity in goal.raw_ids.items() if name in before and before[name] != identity -%}
        {%- do names.append(name) -%}
    {%- endfor -%}
    {{ return(names | join(", ")) }}
{%- endmacro %}


{% macro build_sql(target, select_sql, goal) -%}
    {%- set properties = {
        "format-version": "2",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
    } -%}
    {%- do properties.update(config.get("tblproperties") or {}) -%}
    {#- Without a snapshot id yet: enough to know the table for ours after a crash before set_watermark(). -#}
    {%- do properties.update({
        "strandline.materialization": goal.materialization,
        "strandline.watermark": strandline.watermark_text(goal),
    }) -%}
    create or replace table {{ target }}
    {%- if config.get("contract").enforced %}
    {{ get_assert_columns_equivalent(select_sql) }}
    {%- set select_sql = get_select_subquery(select_sql) %}
    {%- endif %}
    using iceberg
    {%- if goal.materialization == "deduped_history" and not config.get("partition_by") %}
    {#- Closed rows only ever grow in number: merges, and whoever asks for the current ones, pass them by. #}
    partitioned by (is_current)
    {%- else %}
    {{ partition_cols(label="partitioned by") }}
    {%- endif %}
    tblproperties (
        {%- for name, value in properties.items() %}
        {{ strandline.text_literal(name) }} = {{ strandline.text_literal(value) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
    {{ comment_clause() }}
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
    {#- A column that the model no longer selects stays in the table, null in what comes new. -#}
    {{- "delta." ~ strandline.quoted(column) if column | lower in known else "null" -}}
{%- endmacro %}
