{% macro union_raw(relations) -%}
    {#- Returns the rows of several raw tables. A column that one of the tables lacks is null in its
        rows. `_cq_table` is the name of the raw table, and `_cq_table_rank` is its position in the
        list. A version from a later table in the list is treated as newer. The SQL comments let a
        materialization distinguish a new column in a raw table from a change to the model's
        SQL. -#}
    {%- set columns = {} -%}
    {%- set present = [] -%}
    {%- for relation in relations -%}
        {%- set own = strandline._columns(relation) if execute else {} -%}
        {%- for name, column in own.items() if name not in columns -%}
            {%- do columns.update({name: column.name}) -%}
        {%- endfor -%}
        {%- do present.append(own) -%}
    {%- endfor -%}
    /* union_raw */
    {%- for relation in relations -%}
        {%- set own = present[loop.index0] %}
    select
        {%- for name, shown in columns.items() %}
        {{ strandline._quote(own[name].name) if name in own else "null" }}
            as {{ strandline._quote(shown) }},
        {%- endfor %}
        {{ strandline._literal(strandline._table_name(relation)) }} as _cq_table,
        {{ loop.index }} as _cq_table_rank
    from {{ relation }} as versions
    {{- "\n    union all" if not loop.last }}
    {%- endfor %}
    /* end of union_raw */
    {#- The order of the tables determines the newest version, so a different order must change the
        SQL. -#}
    /* of {{ relations | map("string") | join(", ") }} */
{%- endmacro %}


{% macro _without_unions(text) -%}
    {#- Removes from a statement the column lists that union_raw() wrote. -#}
    {%- set kept = [] -%}
    {%- for part in text.split("/* union_raw */") -%}
        {%- do kept.append(part if loop.first
            else part.split("/* end of union_raw */", 1) | last) -%}
    {%- endfor -%}
    {{ return(kept | join(" union_raw ")) }}
{%- endmacro %}
