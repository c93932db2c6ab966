{% test no_cursor_ties(model, unique_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {{ strandline._row_test_sql(
        "no_cursor_ties", model, unique_key, cursor_field, row_condition, ["key", "cursor"]) }}
{% endtest %}


{% macro _no_cursor_ties_sql(subject, asked) -%}
    {#- Returns versions of a key that have the same cursor but different contents. Such versions
        are ordered by batch, which may differ from their order in the source. Rows with a null
        cursor are ignored. Keys that a later full refresh or repair has reread are also ignored,
        because the reread determined the correct contents. -#}
    {%- set versions -%}
        (
            select *
            from (
                select
                    *,
                    max(_cq_generation) over (partition by {{ strandline._column_list(
                        subject.key) }}) as _cq_newest_generation
                from {{ strandline._touched(subject, subject.versions, asked) }} as touched_versions
            ) as versions_of_keys
            where _cq_newest_generation <= 1
                or coalesce(_cq_generation >= _cq_newest_generation, true)
        )
    {%- endset -%}
    select *
    from (
        {{ strandline.duplicates(versions, strandline._version_key(subject), subject.cursor) }}
    ) as ties
    where duplicate_kind = 'conflict'
        and {{ strandline._quote(subject.cursor) }} is not null
        and {{ strandline._not_acknowledged(subject.get("incidents", []), "_cq_batch") }}
{%- endmacro %}
