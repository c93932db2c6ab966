{% macro snapshot_body(sql, floor) -%}
    {%- if floor is none -%}
        {{ sql }}
    {%- else -%}
        select *
        from (
            {{ sql }}
        ) as all_generations
        where _cq_generation >= {{ floor }}
    {%- endif -%}
{%- endmacro %}


{% macro snapshot_build_sql(target, sql, head, floor, primary_key, cursor_field) -%}
    {%- set properties = {
        "format-version": "2",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
    } -%}
    {%- do properties.update(config.get("tblproperties") or {}) -%}
    {#- Without a snapshot id yet: enough to know the table for ours after a crash before set_watermark(). -#}
    {%- do properties.update({
        "strandline.watermark": strandline.watermark_text(head, floor, primary_key, cursor_field)
    }) -%}
    {%- set select_sql -%}
        {{ strandline.deduped_latest(
            "(\n" ~ strandline.snapshot_body(sql, floor) ~ "\n)", primary_key, cursor_field, as_of=head or 0
        ) }}
    {%- endset -%}
    create or replace table {{ target }}
    {%- if config.get("contract").enforced %}
    {{ get_assert_columns_equivalent(select_sql) }}
    {%- set select_sql = get_select_subquery(select_sql) %}
    {%- endif %}
    using iceberg
    {{ partition_cols(label="partitioned by") }}
    tblproperties (
        {%- for name, value in properties.items() %}
        {{ strandline.text_literal(name) }} = {{ strandline.text_literal(value) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
    {{ comment_clause() }}
    as
    {{ select_sql }}
{%- endmacro %}


{% macro snapshot_merge_sql(target, sql, low, head, floor, primary_key, cursor_field) -%}
    {%- set known = get_columns_in_query(sql) | map("lower") | list -%}
    {%- set columns = adapter.get_columns_in_relation(target) | map(attribute="name") | list -%}
    {%- set delta_order = strandline.version_order(cursor_field, "delta") -%}
    {%- set snapshot_order = strandline.version_order(cursor_field, "snapshot") -%}
    merge into {{ target }} as snapshot
    using (
        with versions as (
            {{ strandline.snapshot_body(sql, floor) }}
        ),

        -- literals, not a subquery: Iceberg prunes raw files by their batch statistics
        delta as (
            select *
            from versions
            where _cq_batch > {{ low }} and _cq_batch <= {{ head }}
        ),

        newest as (
            select keys.newest.*
            from (
                select max_by(struct(*), {{ strandline.version_order(cursor_field) }}) as newest
                from delta
                group by
                    {%- for key in primary_key %}
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
            on {{ strandline.same_key(primary_key, "newest", "tombstones") }}
            and {{ strandline.version_order(cursor_field, "tombstones") }}
                > {{ strandline.version_order(cursor_field, "newest") }}
    ) as delta
    on {{ strandline.same_key(primary_key, "snapshot", "delta") }}
    when matched and {{ delta_order }} > {{ snapshot_order }} and delta._cq_deleted then delete
    when matched and {{ delta_order }} > {{ snapshot_order }} then update set
        {%- for column in columns %}
        {{ strandline.quoted(column) }} = {{ strandline.delta_value(column, known) }}{{ "," if not loop.last }}
        {%- endfor %}
    when not matched and not coalesce(delta._cq_deleted, false) then insert (
        {%- for column in columns %}
        {{ strandline.quoted(column) }}{{ "," if not loop.last }}
        {%- endfor %}
    ) values (
        {%- for column in columns %}
        {{ strandline.delta_value(column, known) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
{%- endmacro %}


{% macro same_key(primary_key, left, right) -%}
    {%- for key in primary_key -%}
        {{ left }}.{{ strandline.quoted(key) }} <=> {{ right }}.{{ strandline.quoted(key) }}
        {{- " and " if not loop.last -}}
    {%- endfor -%}
{%- endmacro %}


{% macro delta_value(column, known) -%}
    {#- A column that the model no longer selects stays in the snapshot, null in what comes new. -#}
    {{- "delta." ~ strandline.quoted(column) if column | lower in known else "null" -}}
{%- endmacro %}


{% macro add_new_columns(target, sql, columns) -%}
    {%- set existing = adapter.get_columns_in_relation(target) | map(attribute="name") | map("lower") | list -%}
    {%- set added = [] -%}
    {%- for column in columns if column | lower not in existing -%}
        {%- do added.append(column) -%}
    {%- endfor -%}
    {%- if added -%}
        {#- typeof() spells a type in full; DESCRIBE shortens a struct of many fields. -#}
        {%- set types_sql -%}
            select
                {%- for column in added %}
                typeof(first({{ strandline.quoted(column) }})){{ "," if not loop.last }}
                {%- endfor %}
            from (
                {{ sql }}
            ) as versions
            where false
        {%- endset -%}
        {%- set types = run_query(types_sql).rows[0] -%}
        {%- set definitions = [] -%}
        {%- for column in added -%}
            {%- do definitions.append(strandline.quoted(column) ~ " " ~ types[loop.index0]) -%}
        {%- endfor -%}
        {%- do run_query("alter table " ~ target ~ " add columns (" ~ definitions | join(", ") ~ ")") -%}
    {%- endif -%}
{%- endmacro %}
