{% macro version_order(cursor_field=none, alias=none, union=false) -%}
    {{- return(adapter.dispatch("version_order", "strandline")(cursor_field, alias, union)) -}}
{%- endmacro %}


{% macro default__version_order(cursor_field, alias, union) -%}
    row({{ strandline._version_fields(cursor_field, alias, union) | join(", ") }})
{%- endmacro %}


{% macro spark__version_order(cursor_field, alias, union) -%}
    {#- Returns the order of a key's versions as one value. Structs are compared field by field with
        nulls lowest, so a null cursor is lower than all other cursors and does not make max_by()
        return null. -#}
    struct({{ strandline._version_fields(cursor_field, alias, union, true) | join(", ") }})
{%- endmacro %}


{% macro _version_fields(cursor_field, alias, union, nulls_are_lowest=false) -%}
    {#- Returns the fields of the order. -#}
    {%- set prefix = alias ~ "." if alias else "" -%}
    {%- set generation = prefix ~ "_cq_generation" -%}
    {%- set fields = ([prefix ~ "_cq_table_rank"] if union else [])
        + [generation if nulls_are_lowest else "coalesce(" ~ generation ~ ", 0)"] -%}
    {%- if cursor_field -%}
        {%- set cursor = prefix ~ strandline._quote(cursor_field) -%}
        {%- do fields.extend([cursor] if nulls_are_lowest else [cursor ~ " is not null", cursor]) -%}
    {%- endif -%}
    {{ return(fields + [prefix ~ "_cq_batch", prefix ~ "_cq_seq"]) }}
{%- endmacro %}


{% macro _order_by(cursor_field, union=false, direction="") -%}
    {#- Returns the same order as a list for ORDER BY. -#}
    {%- set terms = [] -%}
    {%- for field in strandline._version_fields(cursor_field, none, union) -%}
        {%- do terms.append((field ~ " " ~ direction) | trim) -%}
    {%- endfor -%}
    {{ return(terms | join(", ")) }}
{%- endmacro %}
