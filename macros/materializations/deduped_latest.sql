{% materialization deduped_latest, adapter="spark", supported_languages=["sql"] %}
    {{ return(strandline.build_from_batches(strandline.latest_kind())) }}
{% endmaterialization %}


{% macro latest_kind() -%}
    {#- A row a key: its newest version. See history_kind(). -#}
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
        The condition on the newest version of a key to be shown, tombstones aside; none where there is none.
        Of several tables the last that had a key tells of it, also where a full refresh of that one no longer
        found it: its generation is asked of the newest version, not of those that compete to be it.
    -#}
    {%- set conditions = [] -%}
    {%- set shown = strandline.shown_of(goal.tables) if goal.tables | length > 1 else none -%}
    {%- for condition in [goal.row_filter, none if goal.kind.keeps_versions else shown] if condition -%}
        {%- do conditions.append("(" ~ condition ~ "\n)") -%}
    {%- endfor -%}
    {{ return(conditions | join(" and ") or none) }}
{%- endmacro %}


{% macro shown_generations(sql, tables) -%}
    {#- Of one table the newest version is of the newest generation: overruled ones need not be read. -#}
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
    {#- What a loader that runs meanwhile publishes waits for the next build. -#}
    select *
    from (
        {{ sql }}
    ) as all_batches
    where {{ strandline.of_batches(tables, up_to="head") }}
{%- endmacro %}


{% macro hidden(goal) -%}
    {#- The condition on a version, once it is the newest, to keep its key out of the table. -#}
    {#- As plain as it can be: Iceberg leaves out files without tombstones. -#}
    {%- set shown = strandline.shown_newest(goal) -%}
    _cq_deleted{% if shown %} or not coalesce({{ shown }}, false){% endif %}
{%- endmacro %}


{% macro latest_merge(target, sql, goal) -%}
    {%- set known = goal.columns | map("lower") | list -%}
    {%- set existing = strandline.column_names(target) -%}
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

        -- a key that is deleted or filtered out has left the snapshot: only raw tells that a late version is stale
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
