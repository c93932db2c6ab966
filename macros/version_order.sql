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
    {%- set generation, batch = prefix ~ "_cq_generation", prefix ~ "_cq_batch" -%}
    {%- set cursor = [prefix ~ strandline._quote(cursor_field)] if cursor_field else [] -%}
    {%- if not nulls_are_lowest -%}
        {%- set generation = "coalesce(" ~ generation ~ ", 0)" -%}
        {%- set batch = "coalesce(" ~ batch ~ ", 0)" -%}
        {%- set cursor = [cursor[0] ~ " is not null"] + cursor if cursor else [] -%}
    {%- endif -%}
    {{ return(([prefix ~ "_cq_table_rank"] if union else []) + [generation] + cursor
        + [batch, prefix ~ "_cq_seq"]) }}
{%- endmacro %}
