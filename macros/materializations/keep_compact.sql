{% macro keep_compact(target) -%}
    {#-
        Merge-on-read is cheap to write and leaves small files, which every reader pays for. With more
        than a few dozen of them, the table is rewritten; its rows stay the same. Delete files that point
        to removed data files go, too, or the next build would count as many files again. The counts come
        from the summary of the newest Iceberg snapshot and cost no scan. Returns the table's snapshot.
    -#}
    {%- set snapshot = strandline.current_snapshot(target) -%}
    {%- set summary_sql -%}
        select
            cast(summary['total-data-files'] as int) + cast(summary['total-delete-files'] as int) as files,
            cast(summary['total-files-size'] as bigint) as bytes
        from {{ target }}.snapshots as snapshots
        where snapshot_id = {{ snapshot or 0 }}
    {%- endset -%}
    {%- set found = run_query(summary_sql).rows -%}
    {%- if found and found[0][0] is not none
        and found[0][0] | int > 32 + 2 * ((found[0][1] | int) // 134217728) -%}
        {%- do strandline.rewrite(target) -%}
        {{ return(strandline.current_snapshot(target)) }}
    {%- endif -%}
    {{ return(snapshot) }}
{%- endmacro %}
