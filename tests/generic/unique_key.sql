{% test unique_key(model, primary_key=none) %}
    {{ config(severity="error") }}
    {%- set keys = strandline.tested_key(model, primary_key, "unique_key") %}
    select
        {%- for key in keys %}
        {{ strandline.quoted(key) }},
        {%- endfor %}
        count(*) as rows_of_key
    from {{ model }}
    group by
        {%- for key in keys %}
        {{ strandline.quoted(key) }}{{ "," if not loop.last }}
        {%- endfor %}
    having count(*) > 1
{% endtest %}
