{% materialization deduped_history, adapter="spark", supported_languages=["sql"] %}
    {{ return(strandline.build_from_batches(strandline.history_kind())) }}
{% endmaterialization %}


{% macro history_kind() -%}
    {#-
        What a deduped_ materialization passes to build_from_batches(): its name; whether it keeps one row per
        version rather than one per key; the columns that it adds; how its table is partitioned if the config does
        not say (the number of closed rows only grows, so merges and readers of current rows should skip them);
        select(sql, goal), the SELECT for the whole table; merge(target, sql, goal), the merge of what is new.
    -#}
    {{ return({
        "name": "deduped_history",
        "keeps_versions": true,
        "added_columns": ["valid_from", "valid_to", "is_current"],
        "partition_by": ["is_current"],
        "select": strandline.history_select,
        "merge": strandline.history_merge,
    }) }}
{%- endmacro %}


{% macro history_versions(sql, goal) -%}
    {#- The model's versions up to the head, with tombstones for keys that full refreshes no longer found. -#}
    {{ return(strandline.with_vanished(
        "(\n" ~ strandline.up_to_head(sql, goal.tables) ~ "\n)", goal.refreshes, goal.columns, goal.primary_key
    )) }}
{%- endmacro %}


{% macro history_select(sql, goal) -%}
    {{ strandline.history_sql(
        strandline.history_versions(sql, goal),
        goal.primary_key,
        strandline.order_of(goal),
        strandline.changed_at(goal.cursor_field),
        goal.row_filter
    ) }}
{%- endmacro %}


{% macro history_ctes(target, sql, goal) -%}
    {#- What a merge starts from: the new versions, and what the table and raw hold for each of their keys. -#}
        versions as (
            select
                *,
                {{ strandline.changed_at(goal.cursor_field) }} as _cq_changed_at
            from {{ strandline.history_versions(sql, goal) }} as versions
        ),

        -- literals, not a subquery: Iceberg prunes raw files by their batch statistics
        delta as (
            select *
            from versions
            where {{ strandline.of_batches(goal.tables, above="low") }}
        ),

        touched as (
            {{ strandline.history_touched(goal) }}
        ),

        stored as (
            {{ strandline.history_stored(target, goal) }}
        ),

        -- versions after which the table does not show the key: deletes, and those that row_filter hides
        left_keys as (
            select versions.*
            from versions
            left semi join touched
                on {{ strandline.same_key(goal.primary_key, "versions", "touched") }}
            where ({{ strandline.hidden(goal) }}) and {{ strandline.of_batches(goal.tables, up_to="low") }}
        )
{%- endmacro %}


{% macro history_order_ctes(goal) -%}
    {#-
        What shows which keys are in order: those whose new versions all follow the last one, so that their
        earlier versions need not be read. A new version with an older generation, a lower cursor or an earlier
        time is out of order, and the history of its key is computed from all of raw.
    -#}
        last as (
            {{ strandline.history_last(goal) }}
        ),

        keys as (
            {{ strandline.history_keys(goal) }}
        )
{%- endmacro %}


{% macro history_touched(goal) -%}
    {#- The keys of the new versions, each with its lowest new generation, cursor and time. -#}
            select
                {{ strandline.key_list(goal.primary_key) }},
                min(_cq_generation) as _cq_lowest_generation,
                min(struct({{ strandline.cursor_of(goal) }} as at)) as _cq_lowest_cursor,
                min(_cq_changed_at) as _cq_earliest
            from delta
            group by {{ strandline.key_list(goal.primary_key) }}
{%- endmacro %}


{% macro history_stored(target, goal) -%}
    {#-
        The newest version of each touched key in the table. If the table is `exact`, a key without a current row
        is new or deleted, and raw's tombstones tell which. So closed rows, whose number only grows, are not
        read.
    -#}
            select newest.*
            from (
                select max_by(struct(history.*), {{ strandline.order_of(goal, "history") }}) as newest
                from {{ target }} as history
                left semi join touched
                    on {{ strandline.same_key(goal.primary_key, "history", "touched") }}
                where {{ strandline.of_batches(goal.tables, up_to="low", alias="history") }}
                    {{- " and history.is_current" if goal.exact }}
                group by {{ strandline.key_list(goal.primary_key, "history") }}
            ) as keys
{%- endmacro %}


{% macro history_last(goal) -%}
    {#- The last version of each touched key, shown or not: since when it is valid, and its cursor. -#}
            select
                {{ strandline.key_list(goal.primary_key) }},
                max_by(_cq_since, _cq_place) as _cq_since,
                max_by(struct(_cq_at as at), _cq_place) as _cq_cursor
            from (
                select
                    {{ strandline.key_list(goal.primary_key) }},
                    {{ strandline.order_of(goal) }} as _cq_place,
                    {{ strandline.cursor_of(goal) }} as _cq_at,
                    valid_from as _cq_since
                from stored
                union all
                select
                    {{ strandline.key_list(goal.primary_key) }},
                    {{ strandline.order_of(goal) }},
                    {{ strandline.cursor_of(goal) }},
                    _cq_changed_at
                from left_keys
            ) as known
            group by {{ strandline.key_list(goal.primary_key) }}
{%- endmacro %}


{% macro history_keys(goal) -%}
    {#- The touched keys, and whether the new versions of each follow its last version. -#}
            select
                touched.*,
                last._cq_cursor is null
                {%- if goal.tables | length == 1 %} or coalesce(
                    touched._cq_lowest_generation >= {{ goal.generation }}
                    and touched._cq_lowest_cursor >= last._cq_cursor
                    and touched._cq_earliest >= last._cq_since,
                    false
                )
                {%- endif %} as _cq_in_order
            from touched
            left join last
                on {{ strandline.same_key(goal.primary_key, "touched", "last") }}
{%- endmacro %}


{% macro history_followed(goal, disordered) -%}
    {#-
        What the new rows are computed from: of a key in order, its newest stored version, what has hidden it
        since, and what is new; of any other key, all its versions.
    -#}
            select
                {{ strandline.key_list(goal.columns, "stored") }},
                stored.valid_from as _cq_changed_at
            from stored
            {%- if not disordered %}
            union all
            select * from delta
            union all
            select * from left_keys
            {%- else %}
            left semi join (select * from keys where _cq_in_order) as keys
                on {{ strandline.same_key(goal.primary_key, "stored", "keys") }}
            union all
            select
                {{ strandline.key_list(goal.columns, "versions") }},
                versions._cq_changed_at
            from (
                select
                    *,
                    {{ strandline.of_batches(goal.tables, above="low") }} or {{ strandline.hidden(goal) }} as _cq_follows
                from versions
            ) as versions
            left semi join keys
                on {{ strandline.same_key(goal.primary_key, "versions", "keys") }}
                and (versions._cq_follows or not keys._cq_in_order)
            {%- endif %}
{%- endmacro %}


{% macro history_with_gone(target, goal) -%}
    {#- The computed rows, and stored versions that now repeat one that came in between: no longer versions of their own. -#}
        select *
        from (
            select
                *,
                min(_cq_gone) over (
                    partition by _cq_batch, _cq_seq{{ ", _cq_table" if goal.tables | length > 1 }}
                ) as _cq_not_computed
            from (
                select computed.*, false as _cq_gone from computed
                union all
                select
                    {{ strandline.key_list(goal.columns, "history") }},
                    history.valid_from as _cq_changed_at,
                    history.valid_from,
                    history.valid_to,
                    history.is_current,
                    true as _cq_gone
                from {{ target }} as history
                left semi join (select * from keys where not _cq_in_order) as keys
                    on {{ strandline.same_key(goal.primary_key, "history", "keys") }}
            ) as versions
        ) as versions
        where not _cq_gone or _cq_not_computed
{%- endmacro %}


{% macro cursor_of(goal) -%}
    {{ return(strandline.quoted(goal.cursor_field) if goal.cursor_field else "cast(null as int)") }}
{%- endmacro %}


{% macro history_merge(target, sql, goal) -%}
    {%- set known = goal.columns | map("lower") | list -%}
    {%- set validity = goal.kind.added_columns -%}
    {%- set existing = goal.stored -%}
    {%- set ctes = strandline.history_ctes(target, sql, goal) -%}
    {#- Asked first: Spark plans `keys` again wherever a merge names it, and most merges need not. -#}
    {%- set order_ctes = strandline.history_order_ctes(goal) -%}
    {%- set disordered = run_query(
        "with " ~ ctes ~ ", " ~ order_ctes ~ " select 1 from keys where not _cq_in_order limit 1"
    ).rows | length > 0 -%}
    merge into {{ target }} as history
    using (
        with
        {{ ctes }},
        {%- if disordered %}
        {{ order_ctes }},
        {%- endif %}

        followed as (
            {{ strandline.history_followed(goal, disordered) }}
        ),

        computed as (
            {{ strandline.history_sql(
                "followed", goal.primary_key, strandline.order_of(goal), "_cq_changed_at", goal.row_filter
            ) }}
        )

        {% if disordered -%}
        {{ strandline.history_with_gone(target, goal) }}
        {%- else -%}
        select computed.*, false as _cq_gone from computed
        {%- endif %}
    ) as delta
    on {{ strandline.same_key(goal.primary_key, "history", "delta") }}
    and {{ strandline.same_version(goal, "history", "delta") }}
    {%- if goal.exact and not disordered %}
    -- nothing else can change, and Iceberg skips the files of closed rows
    and history.is_current
    {%- endif %}
    when matched and delta._cq_gone then delete
    when matched and struct(history.valid_from, history.valid_to) <> struct(delta.valid_from, delta.valid_to)
        then update set
        {%- for column in validity %}
        {{ column }} = delta.{{ column }}{{ "," if not loop.last }}
        {%- endfor %}
    when not matched and not delta._cq_gone then insert (
        {%- for column in existing %}
        {{ strandline.quoted(column) }}{{ "," if not loop.last }}
        {%- endfor %}
    ) values (
        {%- for column in existing %}
        {{ strandline.delta_value(column, known + validity) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
{%- endmacro %}


{% macro same_version(goal, left, right) -%}
    {{ left }}._cq_batch = {{ right }}._cq_batch and {{ left }}._cq_seq = {{ right }}._cq_seq
    {%- if goal.tables | length > 1 %} and {{ left }}._cq_table = {{ right }}._cq_table{% endif %}
{%- endmacro %}
