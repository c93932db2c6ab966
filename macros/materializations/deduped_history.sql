{% materialization deduped_history, adapter="spark", supported_languages=["sql"] %}
    {{ return(strandline._build("history")) }}
{% endmaterialization %}


{% macro _merge_history(target_table, spec) -%}
    {#- Recomputes the histories of all keys in the new batches and merges the differences. These
        are new versions, versions that end now, and stored versions that now merely repeat a
        late version. -#}
    {%- set known = (spec.columns + ["valid_from", "valid_to", "is_current"]) | map(
        "lower") | list -%}
    {%- set stored = spec.stored_columns -%}
    {%- set place = ["_cq_batch", "_cq_seq"] + (["_cq_table"] if spec.union else []) -%}
    {%- set touched_versions -%}
        (
            select versions.*
            from versions
            left semi join touched
                on {{ strandline._same_key(spec.key, "versions", "touched") }}
        )
    {%- endset -%}
    merge into {{ target_table }} as history
    using (
        with versions as (
            {{ spec.sql }}
        ),

        -- The batches are literals, not a subquery, so that Iceberg can skip raw files.
        touched as (
            select distinct {{ strandline._column_list(spec.key) }}
            from versions
            where {{ strandline._batches(spec.tables, above="low", up_to="head") }}
        ),

        computed as (
            {{ strandline._expected_sql(spec, touched_versions) }}
        ),

        stored as (
            select {{ strandline._column_list(spec.key + place) }}
            from {{ target_table }} as history
            left semi join touched
                on {{ strandline._same_key(spec.key, "history", "touched") }}
        )

        select
            computed.*,
            false as _cq_is_gone
        from computed
        union all
        select
            {%- for column in spec.columns %}
            {%- set name = column | lower %}
            {{ "stored." ~ strandline._quote(column)
                if name in (spec.key + place) | map("lower") | list
                else "null" }} as {{ strandline._quote(column) }},
            {%- endfor %}
            null as valid_from,
            null as valid_to,
            null as is_current,
            true as _cq_is_gone
        from stored
        left anti join computed
            on {{ strandline._same_key(spec.key + place, "stored", "computed") }}
    ) as delta
    on {{ strandline._same_key(spec.key + place, "history", "delta") }}
    when matched and delta._cq_is_gone then delete
    when matched and struct(history.valid_from, history.valid_to)
        <> struct(delta.valid_from, delta.valid_to)
        then update set
        valid_from = delta.valid_from,
        valid_to = delta.valid_to,
        is_current = delta.is_current
    when not matched and not delta._cq_is_gone then insert {{ strandline._inserted(stored, known) }}
{%- endmacro %}
