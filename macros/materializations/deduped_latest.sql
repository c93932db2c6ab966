{% materialization deduped_latest, adapter="spark", supported_languages=["sql"] %}
    {{ return(strandline.build_from_batches(strandline.latest_kind())) }}
{% endmaterialization %}


{% macro latest_kind() -%}
    {#- One row per key: its newest version. See history_kind(). -#}
    {{ return({
        "name": "deduped_latest",
        "keeps_versions": false,
        "added_columns": [],
        "partition_by": [],
        "select": strandline.latest_select,
        "merge": strandline.latest_merge,
    }) }}
{%- endmacro %}


{% macro latest_select(sql, goal) -%}
    {{ strandline.latest_sql(
        "(\n" ~ strandline.up_to_head(strandline.shown_generations(sql, goal.tables), goal.tables) ~ "\n)",
        goal.primary_key,
        goal.cursor_field,
        goal.tables | map(attribute="name") | list,
        strandline.shown_newest(goal)
    ) }}
{%- endmacro %}


{% macro shown_newest(goal) -%}
    {#-
        The condition that a key's newest version must meet to be shown, apart from tombstones; none if there is
        none. With several tables, the last one that had a key decides, even if its full refresh no longer found
        the key. So the generation is checked on the newest version, not on the candidates for it.
    -#}
    {%- set conditions = [] -%}
    {%- set shown = strandline.shown_of(goal.tables) if goal.tables | length > 1 else none -%}
    {%- for condition in [goal.row_filter, none if goal.kind.keeps_versions else shown] if condition -%}
        {%- do conditions.append("(" ~ condition ~ "\n)") -%}
    {%- endfor -%}
    {{ return(conditions | join(" and ") or none) }}
{%- endmacro %}


{% macro shown_generations(sql, tables) -%}
    {#- With one table, the newest version has the newest generation, so overruled ones need not be read. -#}
    {%- set shown = strandline.shown_of(tables) if tables | length == 1 else none -%}
    {%- if shown is none -%}
        {{ sql }}
    {%- else -%}
        select *
        from (
            {{ sql }}
        ) as all_generations
        where {{ shown }}
    {%- endif -%}
{%- endmacro %}


{% macro up_to_head(sql, tables) -%}
    {#- What a running loader publishes during the build waits for the next one. -#}
    select *
    from (
        {{ sql }}
    ) as all_batches
    where {{ strandline.of_batches(tables, up_to="head") }}
{%- endmacro %}


{% macro hidden(goal) -%}
    {#- The condition under which a version, once it is the newest, keeps its key out of the table. -#}
    {#- Kept plain, so that Iceberg can skip files without tombstones. -#}
    {%- set shown = strandline.shown_newest(goal) -%}
    _cq_deleted{% if shown %} or not coalesce({{ shown }}, false){% endif %}
{%- endmacro %}


{% macro latest_merge(target, sql, goal) -%}
    {%- set known = goal.columns | map("lower") | list -%}
    {%- set existing = goal.stored -%}
    {%- set delta_order = strandline.order_of(goal, "delta") -%}
    {%- set snapshot_order = strandline.order_of(goal, "snapshot") -%}
    merge into {{ target }} as snapshot
    using (
        with versions as (
            {{ strandline.shown_generations(sql, goal.tables) }}
        ),

        -- literals, not a subquery: Iceberg prunes raw files by their batch statistics
        delta as (
            select *
            from versions
            where {{ strandline.of_batches(goal.tables, above="low", up_to="head") }}
        ),

        newest as (
            select keys.newest.*
            from (
                select max_by(struct(*), {{ strandline.order_of(goal) }}) as newest
                from delta
                group by
                    {%- for key in goal.primary_key %}
                    {{ strandline.quoted(key) }}{{ "," if not loop.last }}
                    {%- endfor %}
            ) as keys
        ),

        -- a deleted or filtered-out key is no longer in the snapshot: only raw shows that a late version is stale
        left_keys as (
            select *
            from versions
            where ({{ strandline.hidden(goal) }}) and {{ strandline.of_batches(goal.tables, up_to="low") }}
        ),

        current as (
            select newest.*
            from newest
            left anti join left_keys
                on {{ strandline.same_key(goal.primary_key, "newest", "left_keys") }}
                and {{ strandline.order_of(goal, "left_keys") }} > {{ strandline.order_of(goal, "newest") }}
        )

        select
            *,
            coalesce({{ strandline.hidden(goal) }}, false) as _cq_hidden
        from current
    ) as delta
    on {{ strandline.same_key(goal.primary_key, "snapshot", "delta") }}
    when matched and {{ delta_order }} > {{ snapshot_order }} and delta._cq_hidden then delete
    when matched and {{ delta_order }} > {{ snapshot_order }} then update set
        {%- for column in existing %}
        {{ strandline.quoted(column) }} = {{ strandline.delta_value(column, known) }}{{ "," if not loop.last }}
        {%- endfor %}
    when not matched and not delta._cq_hidden then insert (
        {%- for column in existing %}
        {{ strandline.quoted(column) }}{{ "," if not loop.last }}
        {%- endfor %}
    ) values (
        {%- for column in existing %}
        {{ strandline.delta_value(column, known) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
{%- endmacro %}
