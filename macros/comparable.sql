{% macro comparable(column) -%}
    {#-
        Spark cannot compare a MAP, but it can compare its JSON. The formats are explicit because the
        default cuts timestamps to milliseconds.
    -#}
    {%- set value = strandline.quoted(column.name) -%}
    {%- if "map<" in column.type | lower -%}
        to_json(
            struct({{ value }}),
            map(
                'ignoreNullFields', 'false',
                'timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
                'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
            )
        )
    {%- else -%}
        {{ value }}
    {%- endif -%}
{%- endmacro %}


{% macro generations_from(relation, floor) -%}
    {#- A relation without the generations that a complete full refresh has overruled. -#}
    {%- if floor is none -%}
        {{ return(relation) }}
    {%- endif -%}
    {{ return("(select * from " ~ relation ~ " where " ~ strandline.shown_from(floor) ~ ")") }}
{%- endmacro %}
