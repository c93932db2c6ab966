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


{% macro branched_off(relation, before, now) -%}
    {#-
        Whether one Iceberg snapshot is certainly no ancestor of another: the chain of parents leads past it, to the first
        commit of all or to one that is older. If one of them has expired, nothing tells.
    -#}
    {%- set parents = strandline.parents_told(relation, now) -%}
    {%- set reached = namespace(snapshot=now, last=none) -%}
    {%- for step in parents if reached.snapshot in parents and reached.snapshot != before -%}
        {%- set reached.last = reached.snapshot -%}
        {%- set reached.snapshot = parents[reached.snapshot] -%}
    {%- endfor -%}
    {%- if reached.snapshot == before or reached.last is none -%}
        {{ return(false) }}
    {%- elif reached.snapshot is none -%}
        {{ return(true) }}
    {%- endif -%}
    {%- set older_sql -%}
        select if(count(*) = 2, cast(min_by(snapshot_id, committed_at) as string), null)
        from {{ relation }}.snapshots as snapshots
        where snapshot_id in ({{ reached.last }}, {{ before }})
    {%- endset -%}
    {{ return(run_query(older_sql).columns[0].values()[0] == reached.last) }}
{%- endmacro %}


{% macro parents_told(relation, now, by=none) -%}
    {#- A table's Iceberg snapshots, or those of an operation, and the parent of each; see commits_told(). -#}
    {%- set parents = {} -%}
    {%- for snapshot, commit in strandline.commits_told(relation, now).items() if by in (none, commit.operation) -%}
        {%- do parents.update({snapshot: commit.parent}) -%}
    {%- endfor -%}
    {{ return(parents) }}
{%- endmacro %}
