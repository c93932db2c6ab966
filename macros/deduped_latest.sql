{% macro deduped_latest(relation, unique_key, cursor_field=none, as_of=none, delete_stale=false) -%}
    {%- set given = strandline._given_versions(
        "deduped_latest", relation, unique_key, as_of, delete_stale) -%}
    {%- set condition = strandline._from_generations(
        [{"floor": strandline._generation_floor(given.refreshes)}]) -%}
    {%- set versions = "(select * from " ~ given.versions ~ " as everything where " ~ condition
        ~ ")" if condition else given.versions -%}
    {{- strandline._latest_sql(versions, given.key, cursor_field) -}}
{%- endmacro %}


{% macro _given_versions(name, relation, unique_key, as_of, delete_stale) -%}
    {#- Returns the versions from which the `name` macro selects: {key, versions, refreshes}.
        `refreshes` are the complete full refreshes whose result delete_stale shows. -#}
    {%- set owner = name ~ "(" ~ relation ~ ")" -%}
    {%- set key = strandline._require_key(unique_key, owner) -%}
    {%- if execute and target.type == "spark" and relation is not string and relation.schema
        and flags.WHICH != "compile" and strandline._exists(relation) -%}
        {%- do strandline._check_source_in_key(strandline._table_name(relation),
            strandline._sources_of(strandline._properties(relation)), key, owner) -%}
    {%- endif -%}
    {{ return({
        "key": key,
        "versions": strandline.as_of(relation, as_of, owner),
        "refreshes": strandline._full_refreshes(relation, strandline._batch_as_of(
            relation, as_of, owner), owner) if delete_stale and execute else [],
    }) }}
{%- endmacro %}


{% macro _latest_sql(versions, key, cursor_field, union=false, shown=none) -%}
    {#- The row is one struct, so that MAP columns are supported and Spark shuffles only the newest
        versions. -#}
    select *
    from (
        select newest.*
        from (
            select max_by({{ strandline._whole_row("_cq_version") }}, {{ strandline.version_order(
                cursor_field, union=union) }}) as newest
            from {{ versions }} as _cq_version
            group by {{ strandline._column_list(key) }}
        ) as by_key
    ) as latest
    where not coalesce(_cq_deleted, false)
    {%- if shown %}
        and ({{ shown }})
    {%- endif %}
{%- endmacro %}


{% macro _whole_row(alias) -%}
    {#- Returns an expression for all columns of a table with this alias as one struct. -#}
    {{- return(adapter.dispatch("_whole_row", "strandline")(alias)) -}}
{%- endmacro %}


{% macro default___whole_row(alias) -%}
    {{ alias }}
{%- endmacro %}


{% macro spark___whole_row(alias) -%}
    struct(*)
{%- endmacro %}
