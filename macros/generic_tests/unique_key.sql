{% test unique_key(model, unique_key=none, row_condition=none) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {{ strandline._row_test_sql("unique_key", model, unique_key, none, row_condition, ["key"]) }}
{% endtest %}


{% macro _unique_key_sql(subject, asked) -%}
    {%- set history = subject.spec.kind == "history" if subject.spec is defined else false -%}
    select
        {{ strandline._column_list(subject.key) }},
        count(*) as rows_of_key
    from {{ strandline._touched(subject, subject.rows, asked) }}
        as rows_of_table
    {%- if history %}
    where is_current
    {%- endif %}
    group by {{ strandline._column_list(subject.key) }}
    having count(*) > 1
{%- endmacro %}
