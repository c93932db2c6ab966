{% macro follow_schema(target, sql, columns) -%}
    {#-
        Before a merge: adds the columns that the model selects and the table lacks, widens those
        whose type has grown. Returns the columns whose type changed in another way: such a table
        is built anew. typeof() spells a type in full; DESCRIBE shortens a struct of many fields.
    -#}
    {%- set existing = adapter.get_columns_in_relation(target) | map(attribute="name") | list -%}
    {%- set stored = strandline.types_of(target, existing) -%}
    {%- set selected = strandline.types_of("(\n" ~ sql ~ "\n)", columns) -%}
    {%- set added = [] -%}
    {%- set widened = [] -%}
    {%- set differing = [] -%}
    {%- for column in columns -%}
        {%- set before, after = stored.get(column | lower), selected[column | lower] -%}
        {%- if before is none -%}
            {%- do added.append(strandline.quoted(column) ~ " " ~ after) -%}
        {%- elif before != after and strandline.is_widening(before, after) -%}
            {%- do widened.append(strandline.quoted(column) ~ " type " ~ after) -%}
        {%- elif before != after and not strandline.is_widening(after, before) -%}
            {%- do differing.append(column) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if not differing -%}
        {%- if added -%}
            {%- do strandline.run_statement("alter table " ~ target ~ " add columns (" ~ added | join(", ") ~ ")") -%}
        {%- endif -%}
        {%- for change in widened -%}
            {%- do strandline.run_statement("alter table " ~ target ~ " alter column " ~ change) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(differing) }}
{%- endmacro %}


{% macro types_of(relation, columns) -%}
    {#- The full type of each column, by its name in lower case. -#}
    {%- set types_sql -%}
        select
            {%- for column in columns %}
            typeof(first({{ strandline.quoted(column) }})){{ "," if not loop.last }}
            {%- endfor %}
        from {{ relation }} as versions
        where false
    {%- endset -%}
    {%- set row = run_query(types_sql).rows[0] -%}
    {%- set types = {} -%}
    {%- for column in columns -%}
        {%- do types.update({column | lower: row[loop.index0]}) -%}
    {%- endfor -%}
    {{ return(types) }}
{%- endmacro %}


{% macro is_widening(before, after) -%}
    {#- What Iceberg changes in place: int to bigint, float to double, a decimal's precision. -#}
    {%- if [before, after] in [["int", "bigint"], ["float", "double"]] -%}
        {{ return(true) }}
    {%- endif -%}
    {%- set pattern = "^decimal\\(([0-9]+),([0-9]+)\\)$" -%}
    {%- set narrow, wide = modules.re.match(pattern, before), modules.re.match(pattern, after) -%}
    {{ return(
        narrow is not none and wide is not none
        and narrow.group(2) == wide.group(2)
        and narrow.group(1) | int < wide.group(1) | int
    ) }}
{%- endmacro %}
