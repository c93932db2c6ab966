{% macro union_raw(relations) -%}
    {{- return(adapter.dispatch("union_raw", "strandline")(relations)) -}}
{%- endmacro %}


{% macro spark__union_raw(relations) -%}
    {#-
        The versions of several raw tables, with `_cq_table` to tell them apart; a column that one
        of them lacks is null there. If two of them hold a key, the table listed later wins. The SQL comments
        tell the materializations which tables these are, in order; new columns between the comments come from
        raw and do not count as a change of the model's SQL.
    -#}
    {%- set columns = {} -%}
    {%- set present = [] -%}
    {%- for relation in relations -%}
        {%- do strandline.check_name(relation | string) -%}
        {%- set own = {} -%}
        {%- for column in (adapter.get_columns_in_relation(relation) if execute else []) -%}
            {%- do own.update({column.name | lower: column.name}) -%}
            {%- do columns.setdefault(column.name | lower, column.name) -%}
        {%- endfor -%}
        {%- do present.append(own) -%}
    {%- endfor -%}
    {%- set names = [] -%}
    {%- for relation in relations -%}
        {%- do names.append(strandline.name_of(relation) if execute else relation.identifier) -%}
    {%- endfor -%}
    /* union_raw {{ strandline.veiled(tojson(names)) }} */
    {%- for relation in relations -%}
        {%- set own = present[loop.index0] %}
    select
        {%- for name, shown in columns.items() %}
        {{ strandline.quoted(own[name]) if name in own else "null" }} as {{ strandline.quoted(shown) }},
        {%- endfor %}
        {{ strandline.text_literal(names[loop.index0]) }} as _cq_table
    from {{ relation }} as versions
    {{- "\n    union all" if not loop.last }}
    {%- endfor %}
    /* end of union_raw */
{%- endmacro %}


{% macro union_names(text) -%}
    {#- The tables that union_raw() lists in a statement, in that order. -#}
    {%- set names = [] -%}
    {%- for listed in modules.re.findall("/\\* union_raw (hex:[0-9a-f]+) \\*/", text) -%}
        {%- for name in fromjson(strandline.unveiled(listed)) if name not in names -%}
            {%- do names.append(name) -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(names) }}
{%- endmacro %}


{% macro without_unions(text) -%}
    {#- A statement without the column lists that union_raw() wrote into it. -#}
    {{ return(modules.re.sub(
        "(/\\* union_raw hex:[0-9a-f]+ \\*/).*?/\\* end of union_raw \\*/", "\\1", text, flags=modules.re.DOTALL
    )) }}
{%- endmacro %}
