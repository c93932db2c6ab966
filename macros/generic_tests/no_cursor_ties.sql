{% test no_cursor_ties(model, unique_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {%- if not strandline._is_testing() %}
        {{ strandline._nothing("1 as _cq_batch") }}
    {%- else %}
        {%- set subject = strandline._subject(
            model, "no_cursor_ties", unique_key, cursor_field, row_condition, ["key", "cursor"]
        ) %}
        {{ strandline._row_test_sql("no_cursor_ties", subject) }}
    {%- endif %}
{% endtest %}


{% macro _no_cursor_ties_sql(subject, asked) -%}
    {#-
        Returns versions of a key that have the same cursor but different contents. Such versions
        are ordered by batch, which may differ from their order in the source. Rows with a null
        cursor are ignored. Keys that a later full refresh or repair has reread are also ignored,
        because the reread determined the correct contents.
    -#}
    select ties.*
    from (
        {{ strandline.duplicates(
            strandline._touched(subject, subject.versions, asked), strandline._version_key(subject),
            subject.cursor
        ) }}
    ) as ties
    where ties.duplicate_kind = 'conflict'
        and ties.{{ strandline._quote(subject.cursor) }} is not null
        and {{ strandline._not_acknowledged(subject.get("incidents", []), "ties._cq_batch") }}
        and not exists (
            select 1
            from {{ subject.versions }} as newer
            where newer._cq_generation > 1
                and newer._cq_generation > ties._cq_generation
                and {{ strandline._same_key(subject.key, "newer", "ties") }}
        )
{%- endmacro %}
