{% materialization deduped_latest, adapter="spark", supported_languages=["sql"] %}
    {%- set owner = "Model '" ~ model.name ~ "' (deduped_latest)" -%}
    {%- set primary_key = strandline.key_columns(config.get("primary_key"), owner) -%}
    {%- set cursor_field = config.get("cursor_field") -%}
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
    {%- do strandline.check_snapshot_columns(columns, primary_key, cursor_field, owner) -%}

    {%- set head = strandline.head_batch("(\n" ~ sql ~ "\n)") -%}
    {%- set floor = strandline.generation_floor(head, owner) if config.get("delete_stale", false) else none -%}
    {%- set covered = strandline.watermark(existing) if existing is not none and existing.is_iceberg else none -%}
    {%- set plan = strandline.snapshot_plan(covered, head, floor, primary_key, cursor_field) -%}

    {%- if plan.step == "build" -%}
        {%- if plan.reason -%}
            {{ log(owner ~ ": built anew: " ~ plan.reason, info=true) }}
        {%- endif -%}
        {%- if existing is not none and not existing.is_iceberg -%}
            {%- do adapter.drop_relation(existing) -%}
        {%- endif -%}
        {%- call statement("main") -%}
            {{ strandline.snapshot_build_sql(target, sql, head, floor, primary_key, cursor_field) }}
        {%- endcall -%}
        {%- do strandline.set_watermark(target, head, floor, primary_key, cursor_field) -%}
        {{- store_raw_result(name="main", message="BUILD to batch " ~ (head or 0), code="BUILD", rows_affected="-1") -}}
    {%- elif plan.step == "merge" -%}
        {%- do strandline.add_new_columns(target, sql, columns) -%}
        {%- call statement("main") -%}
            {{ strandline.snapshot_merge_sql(target, sql, plan.low, head, floor, primary_key, cursor_field) }}
        {%- endcall -%}
        {%- do strandline.set_watermark(target, head, floor, primary_key, cursor_field) -%}
        {{- store_raw_result(name="main", message="MERGE to batch " ~ head, code="MERGE", rows_affected="-1") -}}
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
{% endmaterialization %}


{% macro check_snapshot_columns(columns, primary_key, cursor_field, owner) -%}
    {%- set known = columns | map("lower") | list -%}
    {%- set missing = [] -%}
    {%- for name in ["_cq_batch", "_cq_seq", "_cq_generation", "_cq_deleted"] if name not in known -%}
        {%- do missing.append(name) -%}
    {%- endfor -%}
    {%- if missing -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT lacks " ~ missing | join(", ") ~ ". It must read a raw table of the loader and keep "
            ~ "the _cq_ columns, as in: select * from {{ source('shop', 'orders') }}"
        ) }}
    {%- endif -%}
    {%- do strandline.check_columns(primary_key, columns, owner, "primary_key") -%}
    {%- if cursor_field -%}
        {%- do strandline.check_columns([cursor_field], columns, owner, "cursor_field") -%}
    {%- endif -%}
{%- endmacro %}


{% macro snapshot_plan(covered, head, floor, primary_key, cursor_field) -%}
    {#- Whether to build, merge or do nothing; a build is always right, a merge is cheap. -#}
    {%- set plan = {"step": "build", "reason": none, "low": none} -%}
    {%- if covered is none or should_full_refresh() -%}
        {{ return(plan) }}
    {%- endif -%}
    {%- if covered.primary_key != primary_key or covered.cursor_field != cursor_field -%}
        {%- do plan.update({"reason": "primary_key or cursor_field changed"}) -%}
    {%- elif covered.generation_floor != floor -%}
        {%- do plan.update({"reason": "delete_stale: the rows it hides changed (generation floor " ~ floor ~ ")"}) -%}
    {%- elif floor is not none and not covered.exact -%}
        {%- do plan.update({"reason": "delete_stale: the table was written by others"}) -%}
    {%- elif (head or 0) < covered.batch -%}
        {%- do plan.update({"reason": "the raw table ends at batch " ~ (head or 0) ~ ", before batch " ~ covered.batch}) -%}
    {%- elif (head or 0) == covered.batch -%}
        {%- do plan.update({"step": "nothing", "low": covered.batch}) -%}
    {%- else -%}
        {%- do plan.update({"step": "merge", "low": covered.batch}) -%}
    {%- endif -%}
    {{ return(plan) }}
{%- endmacro %}
