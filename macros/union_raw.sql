{% macro union_raw(relations) -%}
    {{- return(adapter.dispatch("union_raw", "strandline")(relations)) -}}
{%- endmacro %}


{% macro default__union_raw(relations) -%}
    {#-
        The versions of several raw tables, with `_cq_table` to tell them apart; a column that one
        of them lacks is null there. Of a key in two of them the table that is listed later counts.
    -#}
    {%- set columns = {} -%}
    {%- set present = [] -%}
    {%- for relation in relations -%}
        {%- set own = {} -%}
        {%- for column in (adapter.get_columns_in_relation(relation) if execute else []) -%}
            {%- do own.update({column.name | lower: column.name}) -%}
            {%- do columns.setdefault(column.name | lower, column.name) -%}
        {%- endfor -%}
        {%- do present.append(own) -%}
    {%- endfor -%}
    {%- for relation in relations -%}
        {%- set own = present[loop.index0] %}
    select
        {%- for name, shown in columns.items() %}
        {{ strandline.quoted(own[name]) if name in own else "null" }} as {{ strandline.quoted(shown) }},
        {%- endfor %}
        {{ strandline.text_literal(relation.schema ~ "." ~ relation.identifier) }} as _cq_table
    from {{ relation }} as versions
    {{- "\n    union all" if not loop.last }}
    {%- endfor %}
{%- endmacro %}
