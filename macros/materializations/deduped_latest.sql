{% materialization deduped_latest, adapter="spark", supported_languages=["sql"] %}
    {{ return(strandline.build_from_batches("deduped_latest", [])) }}
{% endmaterialization %}


{% macro latest_select(sql, goal) -%}
    {{ strandline.latest_sql(
        "(\n" ~ strandline.up_to_head(strandline.shown_generations(sql, goal.floor), goal.head) ~ "\n)",
        goal.primary_key,
        goal.cursor_field
    ) }}
{%- endmacro %}


{% macro shown_generations(sql, floor) -%}
    {%- if floor is none -%}
        {{ sql }}
    {%- else -%}
        select *
        from (
            {{ sql }}
        ) as all_generations
        where {{ strandline.shown_from(floor) }}
    {%- endif -%}
{%- endmacro %}


{% macro up_to_head(sql, head) -%}
    {#- What a loader that runs meanwhile publishes waits for the next build. -#}
    select *
    from (
        {{ sql }}
    ) as all_batches
    where _cq_batch <= {{ head or 0 }}
{%- endmacro %}


{% macro latest_merge(target, sql, low, goal, columns) -%}
    {%- set known = columns | map("lower") | list -%}
    {%- set existing = adapter.get_columns_in_relation(target) | map(attribute="name") | list -%}
    {%- set delta_order = strandline.version_order(goal.cursor_field, "delta") -%}
    {%- set snapshot_order = strandline.version_order(goal.cursor_field, "snapshot") -%}
    merge into {{ target }} as snapshot
    using (
        with versions as (
            {{ strandline.shown_generations(sql, goal.floor) }}
        ),

        -- literals, not a subquery: Iceberg prunes raw files by their batch statistics
        delta as (
            select *
            from versions
            where _cq_batch > {{ low }} and _cq_batch <= {{ goal.head }}
        ),

        newest as (
            select keys.newest.*
            from (
                select max_by(struct(*), {{ strandline.version_order(goal.cursor_field) }}) as newest
                from delta
                group by
                    {%- for key in goal.primary_key %}
                    {{ strandline.quoted(key) }}{{ "," if not loop.last }}
                    {%- endfor %}
            ) as keys
        ),

        -- a deleted key has left the snapshot: only its tombstone tells that a late version is stale
        tombstones as (
            select *
            from versions
            where _cq_deleted and _cq_batch <= {{ low }}
        )

        select newest.*
        from newest
        left anti join tombstones
            on {{ strandline.same_key(goal.primary_key, "newest", "tombstones") }}
            and {{ strandline.version_order(goal.cursor_field, "tombstones") }}
                > {{ strandline.version_order(goal.cursor_field, "newest") }}
    ) as delta
    on {{ strandline.same_key(goal.primary_key, "snapshot", "delta") }}
    when matched and {{ delta_order }} > {{ snapshot_order }} and delta._cq_deleted then delete
    when matched and {{ delta_order }} > {{ snapshot_order }} then update set
        {%- for column in existing %}
        {{ strandline.quoted(column) }} = {{ strandline.delta_value(column, known) }}{{ "," if not loop.last }}
        {%- endfor %}
    when not matched and not coalesce(delta._cq_deleted, false) then insert (
        {%- for column in existing %}
        {{ strandline.quoted(column) }}{{ "," if not loop.last }}
        {%- endfor %}
    ) values (
        {%- for column in existing %}
        {{ strandline.delta_value(column, known) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
{%- endmacro %}
