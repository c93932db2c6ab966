{% macro version_order(cursor_field=none, alias=none, tables=[]) -%}
    {{- return(adapter.dispatch("version_order", "strandline")(cursor_field, alias, tables)) -}}
{%- endmacro %}


{% macro spark__version_order(cursor_field, alias, tables) -%}
    {#-
        The only place in SQL that defines the order of a key's versions. A struct compares field by
        field with null lowest, so the order is total: no two versions of a key are equal, and a null
        cursor neither wins nor makes max_by() return null, as it would in a scalar order. Each raw table
        numbers its own generations and batches: of several tables, the later one in `tables` (names, as in
        `_cq_table`) overrules the earlier ones.
    -#}
    {%- set prefix = alias ~ "." if alias else "" -%}
    {%- set fields = [] -%}
    {%- if tables | length > 1 -%}
        {%- set names = [] -%}
        {%- for name in tables -%}
            {%- do names.append(strandline.text_literal(name)) -%}
        {%- endfor -%}
        {%- do fields.append("array_position(array(" ~ names | join(", ") ~ "), " ~ prefix ~ "_cq_table) as table") -%}
    {%- endif -%}
    {%- do fields.append(prefix ~ "_cq_generation") -%}
    {%- if cursor_field -%}
        {%- do fields.append(prefix ~ strandline.quoted(cursor_field)) -%}
    {%- endif -%}
    {%- do fields.append(prefix ~ "_cq_batch") -%}
    {%- do fields.append(prefix ~ "_cq_seq") -%}
    struct({{ fields | join(", ") }})
{%- endmacro %}
