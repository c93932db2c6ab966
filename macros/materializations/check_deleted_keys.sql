{% macro check_deleted_keys(sql, goal, plan, owner) -%}
    {#-
        A tombstone holds only raw's key. If a model's key is another column, or is computed from more, it
        changes once the row is deleted, and the row would stay. Checked if raw's key is known (the source's
        config.meta.strandline.primary_key), for the rows that this build deletes. A computed key may have the name
        of raw's.
    -#}
    {%- set keys = goal.primary_key | reject("equalto", "_cq_table") | list -%}
    {%- set above = "low" if plan.step == "merge" else none -%}
    {%- for table in goal.tables if table.relation is not none and not flags.EMPTY -%}
        {%- set raw_key = [table.key] if table.key is string else table.key | list -%}
        {%- set of_raw = raw_key | map("lower") | list + ["_cq_source_name"] -%}
        {%- set renamed = keys | map("lower") | reject("in", of_raw) | list -%}
        {%- if raw_key and (
            renamed
            or not strandline.selects_whole_table(sql, goal.tables) and strandline.deletes_rows(table, above)
        ) -%}
            {%- do strandline.check_deleted_keys_of(table, raw_key, keys, sql, goal, above, owner) -%}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro %}


{% macro deletes_rows(table, above) -%}
    {#- Whether a raw table has tombstones among the versions that a build reads. Iceberg skips files without any. -#}
    {%- set tombstone_sql -%}
        select 1
        from {{ table.relation }} as versions
        where _cq_deleted and {{ strandline.of_batches([table], above=above, up_to="head") }}
        limit 1
    {%- endset -%}
    {{ return(run_query(tombstone_sql).rows | length > 0) }}
{%- endmacro %}


{% macro check_deleted_keys_of(table, raw_key, keys, sql, goal, above, owner) -%}
    {%- set own = "_cq_source_name" in keys | map("lower") | list -%}
    {%- set identity = raw_key + (["_cq_source_name"] if own else []) -%}
    {%- set many = goal.tables | length > 1 -%}
    {%- set differing_sql -%}
        with deleted as (
            select
                {%- for name in identity %}
                {{ strandline.quoted(name) }}{{ "," if not loop.last }}
                {%- endfor %}
            from {{ table.relation }} as versions
            where _cq_deleted and {{ strandline.of_batches([table], above=above, up_to="head") }}
        ),

        delivered as (
            select
                {%- for name in identity %}
                versions.{{ strandline.quoted(name) }} as raw_key_{{ loop.index }},
                {%- endfor %}
                versions._cq_batch,
                versions._cq_seq
            from {{ table.relation }} as versions
            left semi join deleted
                on {{ strandline.same_key(identity, "versions", "deleted") }}
            where {{ strandline.of_batches([table], up_to="head", alias="versions") }}
        ),

        kept as (
            select
                struct(
                    {%- for key in keys %}
                    {{ strandline.quoted(key) }}{{ "," if not loop.last }}
                    {%- endfor %}
                ) as model_key,
                _cq_batch,
                _cq_seq,
                _cq_deleted
            from (
                {{ sql }}
            ) as versions
            {%- if many %}
            where _cq_table = {{ strandline.text_literal(table.name) }}
            {%- endif %}
        )

        select
            {%- for name in raw_key %}
            cast(raw_key_{{ loop.index }} as string),
            {%- endfor %}
            to_json(min_by(model_key, _cq_deleted)),
            to_json(max_by(model_key, _cq_deleted))
        from delivered
        inner join kept
            on {{ strandline.same_key(["_cq_batch", "_cq_seq"], "delivered", "kept") }}
        group by
            {%- for name in identity %}
            raw_key_{{ loop.index }}{{ "," if not loop.last }}
            {%- endfor %}
        having min_by(to_json(model_key), _cq_deleted) != max_by(to_json(model_key), _cq_deleted)
        limit 1
    {%- endset -%}
    {%- for row in run_query(differing_sql) -%}
        {%- set example = [] -%}
        {%- for name in raw_key -%}
            {%- do example.append(name ~ " " ~ row[loop.index0]) -%}
        {%- endfor -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its primary_key of the row " ~ example | join(", ") ~ " is " ~ row[raw_key | length] ~ ", but "
            ~ row[raw_key | length + 1] ~ " once it is deleted, so it would stay: raw keeps only the key of a deleted row ("
            ~ raw_key | join(", ") ~ "). Use that key as primary_key, or compute primary_key from it alone."
        ) }}
    {%- endfor -%}
{%- endmacro %}
