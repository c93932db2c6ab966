{% test unique_key(model, primary_key=none, row_condition=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_unique_key", "strandline")(model, primary_key, row_condition) }}
{% endtest %}


{% macro spark__test_unique_key(model, primary_key, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as rows_of_key where false
    {%- else %}
    {%- set keys = strandline.tested_key(model, primary_key, "unique_key") %}
    select
        {%- for key in keys %}
        {{ strandline.quoted(key) }},
        {%- endfor %}
        count(*) as rows_of_key
    from {{ strandline.tested_rows(model, row_condition) }} as rows_of_table
    group by
        {%- for key in keys %}
        {{ strandline.quoted(key) }}{{ "," if not loop.last }}
        {%- endfor %}
    having count(*) > 1
    {%- endif %}
{%- endmacro %}
