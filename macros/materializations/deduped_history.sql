{% materialization deduped_history, adapter="spark", supported_languages=["sql"] %}
    {{ return(strandline.build_from_batches("deduped_history", ["valid_from", "valid_to", "is_current"])) }}
{% endmaterialization %}


{% macro history_versions(sql, goal, columns) -%}
    {#- The model's versions up to the head, and the tombstones of what full refreshes no longer found. -#}
    {{ return(strandline.with_vanished(
        "(\n" ~ strandline.up_to_head(sql, goal.head) ~ "\n)", goal.refreshes, columns, goal.primary_key
    )) }}
{%- endmacro %}


{% macro history_select(sql, goal, columns) -%}
    {{ strandline.history_sql(
        strandline.history_versions(sql, goal, columns),
        goal.primary_key,
        strandline.version_order(goal.cursor_field),
        strandline.changed_at(goal.cursor_field)
    ) }}
{%- endmacro %}


{% macro history_touched(target, sql, low, goal, columns, exact) -%}
    {#-
        The CTEs that all statements of a merge begin with: the new versions, and what the table and
        raw hold of each of their keys. A key is `in_order` where everything that is new follows its
        last version: then the versions before need not be looked at. Versions of an older generation,
        of a lower cursor or time are not, and their keys are computed from all of raw.

        Of a table that is `exact`, a key without a current row is new or deleted, and raw's
        tombstones tell which: the rows that are closed, which grow for ever, are not read.
    -#}
    {%- set cursor = strandline.quoted(goal.cursor_field) if goal.cursor_field else "cast(null as int)" -%}
        versions as (
            select
                *,
                {{ strandline.changed_at(goal.cursor_field) }} as _cq_changed_at
            from {{ strandline.history_versions(sql, goal, columns) }} as versions
        ),

        -- literals, not a subquery: Iceberg prunes raw files by their batch statistics
        delta as (
            select *
            from versions
            where _cq_batch > {{ low }}
        ),

        touched as (
            select
                {%- for key in goal.primary_key %}
                {{ strandline.quoted(key) }},
                {%- endfor %}
                min(_cq_generation) as lowest_generation,
                min(struct({{ cursor }} as at)) as lowest_cursor,
                min(_cq_changed_at) as earliest
            from delta
            group by
                {%- for key in goal.primary_key %}
                {{ strandline.quoted(key) }}{{ "," if not loop.last }}
                {%- endfor %}
        ),

        stored as (
            select newest.*
            from (
                select max_by(struct(history.*), {{ strandline.version_order(goal.cursor_field, "history") }}) as newest
                from {{ target }} as history
                left semi join touched
                    on {{ strandline.same_key(goal.primary_key, "history", "touched") }}
                where history._cq_batch <= {{ low }}{{ " and history.is_current" if exact }}
                group by
                    {%- for key in goal.primary_key %}
                    history.{{ strandline.quoted(key) }}{{ "," if not loop.last }}
                    {%- endfor %}
            ) as keys
        ),

        tombstones as (
            select versions.*
            from versions
            left semi join touched
                on {{ strandline.same_key(goal.primary_key, "versions", "touched") }}
            where versions._cq_deleted and versions._cq_batch <= {{ low }}
        ),

        last as (
            select
                {%- for key in goal.primary_key %}
                {{ strandline.quoted(key) }},
                {%- endfor %}
                max_by(since, place) as since,
                max_by(struct(at), place) as cursor,
                max(place)._cq_generation as generation
            from (
                select
                    {%- for key in goal.primary_key %}
                    {{ strandline.quoted(key) }},
                    {%- endfor %}
                    {{ strandline.version_order(goal.cursor_field) }} as place,
                    {{ cursor }} as at,
                    valid_from as since
                from stored
                union all
                select
                    {%- for key in goal.primary_key %}
                    {{ strandline.quoted(key) }},
                    {%- endfor %}
                    {{ strandline.version_order(goal.cursor_field) }},
                    {{ cursor }},
                    _cq_changed_at
                from tombstones
            ) as known
            group by
                {%- for key in goal.primary_key %}
                {{ strandline.quoted(key) }}{{ "," if not loop.last }}
                {%- endfor %}
        ),

        keys as (
            select
                touched.*,
                last.cursor is null or (
                    touched.lowest_generation >= {{ goal.generation }}
                    and touched.lowest_cursor >= last.cursor
                    and touched.earliest >= last.since
                ) as in_order
            from touched
            left join last
                on {{ strandline.same_key(goal.primary_key, "touched", "last") }}
        )
{%- endmacro %}


{% macro disordered_keys(target, sql, low, goal, columns, exact) -%}
    {%- set count_sql -%}
        with
        {{ strandline.history_touched(target, sql, low, goal, columns, exact) }}

        select count(*) from keys where not in_order
    {%- endset -%}
    {{ return(run_query(count_sql).columns[0].values()[0] | int) }}
{%- endmacro %}


{% macro history_merge(target, sql, low, goal, columns, exact) -%}
    {%- set known = columns | map("lower") | list -%}
    {%- set validity = ["valid_from", "valid_to", "is_current"] -%}
    {%- set existing = adapter.get_columns_in_relation(target) | map(attribute="name") | list -%}
    {%- set disordered = strandline.disordered_keys(target, sql, low, goal, columns, exact) > 0 -%}
    merge into {{ target }} as history
    using (
        with
        {{ strandline.history_touched(target, sql, low, goal, columns, exact) }},

        -- what follows the newest stored version: itself, tombstones after it, what is new
        followed as (
            select
                {%- for column in columns %}
                stored.{{ strandline.quoted(column) }},
                {%- endfor %}
                stored.valid_from as _cq_changed_at
            from stored
            left semi join (select * from keys where in_order) as keys
                on {{ strandline.same_key(goal.primary_key, "stored", "keys") }}
            union all
            select versions.*
            from (select * from delta union all select * from tombstones) as versions
            left semi join (select * from keys where in_order) as keys
                on {{ strandline.same_key(goal.primary_key, "versions", "keys") }}
            {%- if disordered %}
            union all
            select versions.*
            from versions
            left semi join (select * from keys where not in_order) as keys
                on {{ strandline.same_key(goal.primary_key, "versions", "keys") }}
            {%- endif %}
        ),

        computed as (
            {{ strandline.history_sql(
                "followed", goal.primary_key, strandline.version_order(goal.cursor_field), "_cq_changed_at"
            ) }}
        )

        select
            computed.*,
            false as _cq_gone
        from computed
        {%- if disordered %}
        union all
        -- what repeats a version that came between: no longer a version of its own
        select
            {%- for column in columns %}
            history.{{ strandline.quoted(column) }},
            {%- endfor %}
            history.valid_from as _cq_changed_at,
            history.valid_from,
            history.valid_to,
            history.is_current,
            true as _cq_gone
        from {{ target }} as history
        left semi join (select * from keys where not in_order) as keys
            on {{ strandline.same_key(goal.primary_key, "history", "keys") }}
        left anti join computed
            on history._cq_batch = computed._cq_batch and history._cq_seq = computed._cq_seq
        {%- endif %}
    ) as delta
    on {{ strandline.same_key(goal.primary_key, "history", "delta") }}
    and history._cq_batch = delta._cq_batch
    and history._cq_seq = delta._cq_seq
    {%- if exact and not disordered %}
    -- nothing else can change, and Iceberg leaves out the files of closed rows
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
