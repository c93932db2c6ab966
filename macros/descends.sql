{% macro descends(relation, before, now, by=none) -%}
    {#-
        Whether one Iceberg snapshot of a table is another one or its ancestor. With `by`, all commits in between are
        of that operation: `replace`, which rewrites files, leaves the rows as they are; any other may change them.
    -#}
    {%- if before == now or before | string == now -%}
        {{ return(true) }}
    {%- elif before is none or now is none -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set parents = strandline.parents_told(relation, now, by) -%}
    {%- set reached = namespace(snapshot=now) -%}
    {%- for step in parents if reached.snapshot in parents and reached.snapshot != before | string -%}
        {%- set reached.snapshot = parents[reached.snapshot] -%}
    {%- endfor -%}
    {{ return(reached.snapshot == before | string) }}
{%- endmacro %}


{% macro parents_told(relation, now, by=none) -%}
    {#- A table's Iceberg snapshots and the parent of each, as they are when `now` is current: asked once an invocation. -#}
    {%- set known = strandline.remembered("ancestors") -%}
    {%- set name = [relation, now, by] | string -%}
    {%- if name not in known -%}
        {%- set commits_sql -%}
            select cast(snapshot_id as string), cast(parent_id as string)
            from {{ relation }}.snapshots as snapshots
            {%- if by %}
            where operation = '{{ by }}'
            {%- endif %}
        {%- endset -%}
        {%- set parents = {} -%}
        {%- for row in run_query(commits_sql) -%}
            {%- do parents.update({row[0]: row[1]}) -%}
        {%- endfor -%}
        {%- do known.update({name: parents}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}
