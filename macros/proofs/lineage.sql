{% macro broken_lineage(table, record) -%}
    {#-
        Why a raw table may no longer hold what it held when it was proved; none if the loader has only appended
        later batches to it since. Any other commit, compaction too, and a batch that reads a range or everything
        again, is a reason to begin anew.
    -#}
    {%- set then = record.raw_snapshot_id | string -%}
    {%- if table.snapshot == then -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set commits_sql -%}
        select
            cast(snapshot_id as string),
            cast(parent_id as string),
            operation,
            summary['strandline.batch'],
            summary['published-wap-id'],
            summary['source-snapshot-id'],
            get_json_object(summary['strandline.sync'], '$.mode')
        from {{ table.relation }}.snapshots as snapshots
    {%- endset -%}
    {%- set commits = {} -%}
    {%- for row in run_query(commits_sql) -%}
        {%- do commits.update({row[0]: {
            "parent": row[1], "operation": row[2], "batch": row[3], "published": row[4], "staged": row[5], "mode": row[6],
        }}) -%}
    {%- endfor -%}
    {%- set at = namespace(snapshot=table.snapshot, reason=none) -%}
    {%- for step in commits if at.reason is none and at.snapshot != then -%}
        {%- set commit = commits.get(at.snapshot) -%}
        {%- if commit is none -%}
            {%- set at.reason = "the commits of " ~ table.name ~ " since then have expired, or it was replaced" -%}
        {%- else -%}
            {#- A batch that was published on top of another commit says only its number; the rest is with the staged one. -#}
            {%- set staged = commits.get(commit.staged or "", {}) -%}
            {%- set batch = commit.batch or (commit.published if not staged or staged.batch else none) -%}
            {%- set mode = commit.mode or staged.get("mode") -%}
            {%- if commit.operation != "append" or not modules.re.match("^[0-9]+$", batch or "") -%}
                {%- set at.reason = table.name ~ " was compacted, or something else wrote to it" -%}
            {%- elif batch | int <= record.batch | int -%}
                {%- set at.reason = "batch " ~ batch ~ " of " ~ table.name ~ " came after batch " ~ record.batch -%}
            {%- elif mode in ("full_refresh", "backfill", "reconcile") -%}
                {%- set at.reason = "batch " ~ batch ~ " of " ~ table.name ~ " is a " ~ mode -%}
            {%- endif -%}
            {%- set at.snapshot = commit.parent or "" -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if at.reason is none and at.snapshot != then -%}
        {{ return("the commits of " ~ table.name ~ " since then have expired, or it was replaced") }}
    {%- endif -%}
    {{ return(at.reason) }}
{%- endmacro %}


{% macro descends(relation, before, now) -%}
    {#- Whether an Iceberg snapshot of a table is the current one or an ancestor of it. -#}
    {%- set before = before | string -%}
    {%- if before == now -%}
        {{ return(true) }}
    {%- endif -%}
    {%- set parents = {} -%}
    {%- for row in run_query(
        "select cast(snapshot_id as string), cast(parent_id as string) from " ~ relation ~ ".snapshots as snapshots"
    ) -%}
        {%- do parents.update({row[0]: row[1]}) -%}
    {%- endfor -%}
    {%- set reached = namespace(snapshot=now) -%}
    {%- for step in parents if reached.snapshot in parents and reached.snapshot != before -%}
        {%- set reached.snapshot = parents[reached.snapshot] -%}
    {%- endfor -%}
    {{ return(reached.snapshot == before) }}
{%- endmacro %}
