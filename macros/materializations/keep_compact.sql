{% macro keep_compact(target, looked_at, owner, goal, sql) -%}
    {#-
        Merge-on-read is cheap to write and leaves small files and rows that are marked as deleted, which every reader
        pays for. With more than a few dozen files, or once half of many rows are deleted, the table is rewritten; its
        rows stay the same. The watermark is set before: if the rewrite is broken off, the merge still counts. Delete files that point to removed data files go, too, or the next build would count as many
        files again. The counts come from the summary of the newest Iceberg snapshot and cost no scan. Returns the table's snapshot; or "0", which is
        the name of none, if something else has written to the table since the build looked at it: then the
        watermark does not vouch for its rows, and the next build compares them with raw.
    -#}
    {%- set snapshot = strandline.current_snapshot(target) -%}
    {%- set summary_sql -%}
        select
            cast(summary['total-data-files'] as int) + cast(summary['total-delete-files'] as int) as files,
            cast(summary['total-files-size'] as bigint) as bytes,
            cast(parent_id as string) as parent,
            cast(summary['total-records'] as bigint) as written,
            cast(summary['total-position-deletes'] as bigint) as deleted
        from {{ target }}.snapshots as snapshots
        where snapshot_id = {{ snapshot or 0 }}
    {%- endset -%}
    {%- set found = run_query(summary_sql).rows -%}
    {%- set before = found[0][2] if found else none -%}
    {%- set foreign = snapshot != looked_at and not strandline.descends(target, looked_at, before, by="replace") -%}
    {%- if not foreign and found and found[0][0] is not none and (
        found[0][0] | int > 32 + 2 * ((found[0][1] | int) // 134217728)
        or found[0][4] | int > [1000000, (found[0][3] | int) // 2] | max
    ) -%}
        {%- do strandline.set_watermark(target, goal, sql, snapshot) -%}
        {%- do strandline.rewrite(target) -%}
        {%- set merged, snapshot = snapshot, strandline.current_snapshot(target) -%}
        {%- set foreign = not strandline.descends(target, merged, snapshot, by="replace") -%}
    {%- endif -%}
    {%- if foreign -%}
        {%- do exceptions.warn(
            owner ~ ": something else wrote to " ~ target ~ " during the build. The next build compares the whole table with "
            ~ "raw, and rebuilds it if they differ."
        ) -%}
        {{ return("0") }}
    {%- endif -%}
    {{ return(snapshot) }}
{%- endmacro %}
