{% macro version_order(cursor_field=none, alias=none) -%}
    {{- return(adapter.dispatch("version_order", "strandline")(cursor_field, alias)) -}}
{%- endmacro %}


{% macro default__version_order(cursor_field, alias) -%}
    {#-
        The one place where the order of a key's versions is written. A struct compares field by
        field with null lowest, so it is total: no two versions of a key are equal, and a null
        cursor neither wins nor makes max_by() return null as a scalar order would.
    -#}
    {%- set prefix = alias ~ "." if alias else "" -%}
    {%- set fields = [prefix ~ "_cq_generation"] -%}
    {%- if cursor_field -%}
        {%- do fields.append(prefix ~ strandline.quoted(cursor_field)) -%}
    {%- endif -%}
    {%- do fields.append(prefix ~ "_cq_batch") -%}
    {%- do fields.append(prefix ~ "_cq_seq") -%}
    struct({{ fields | join(", ") }})
{%- endmacro %}
