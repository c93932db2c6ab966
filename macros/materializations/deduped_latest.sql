{% materialization deduped_latest, adapter="spark", supported_languages=["sql"] %}
    {{ return(strandline._build("latest")) }}
{% endmaterialization %}


{% macro _merge_latest(target_table, spec) -%}
    {#- Merges the newest version of each key in the new batches, unless the table already shows a
        newer version. The table does not contain keys that were deleted or filtered out. For these
        keys, only the raw table shows that a late version is outdated. -#}
    {%- set known = spec.columns | map("lower") | list -%}
    {%- set stored = spec.stored_columns -%}
    {%- set shown = strandline._shown(spec) -%}
    {#- Does not wrap the column in a function, so that Iceberg can skip files without
        tombstones. -#}
    {%- set hidden = "_cq_deleted" ~ (" or not coalesce(" ~ shown ~ ", false)" if shown else "") -%}
    {%- set order = strandline.version_order(spec.cursor, union=spec.union) -%}
    {%- set delta_order = strandline.version_order(spec.cursor, "delta", spec.union) -%}
    {%- set snapshot_order = strandline.version_order(spec.cursor, "snapshot", spec.union) -%}
    merge into {{ target_table }} as snapshot
    using (
        with versions as (
            {{ spec.sql }}
        ),

        newest as (
            select by_key.newest.*
            from (
                select max_by(struct(*), {{ order }}) as newest
                from versions
                where {{ strandline._batches(spec.tables, above="low", up_to="head") }}
                group by {{ strandline._column_list(spec.key) }}
            ) as by_key
        ),

        hidden_before as (
            select *
            from versions
            where ({{ hidden }}) and {{ strandline._batches(spec.tables, up_to="low") }}
        )

        select
            newest.*,
            coalesce({{ hidden }}, false) as _cq_hidden
        from newest
        left anti join hidden_before
            on {{ strandline._same_key(spec.key, "newest", "hidden_before") }}
            and {{ strandline.version_order(spec.cursor, "hidden_before", spec.union) }}
                > {{ strandline.version_order(spec.cursor, "newest", spec.union) }}
    ) as delta
    on {{ strandline._same_key(spec.key, "snapshot", "delta") }}
    when matched and {{ delta_order }} > {{ snapshot_order }} and delta._cq_hidden then delete
    when matched and {{ delta_order }} > {{ snapshot_order }} then update set
        {%- for column in stored %}
        {{ strandline._quote(column) }} = {{ strandline._merged_value(column, known) }}{{ ","
            if not loop.last }}
        {%- endfor %}
    when not matched and not delta._cq_hidden then insert {{ strandline._inserted(stored, known) }}
{%- endmacro %}


{% macro _inserted(stored, known) -%}
    (
        {{ strandline._column_list(stored) }}
    ) values (
        {%- for column in stored %}
        {{ strandline._merged_value(column, known) }}{{ "," if not loop.last }}
        {%- endfor %}
    )
{%- endmacro %}


{% macro _merged_value(column, known) -%}
    {#- A column that the model no longer selects remains in the table and is null in new rows. -#}
    {{- "delta." ~ strandline._quote(column) if column | lower in known else "null" -}}
{%- endmacro %}
