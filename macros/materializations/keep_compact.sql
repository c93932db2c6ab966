{% macro keep_compact(target) -%}
    {#-
        Merge-on-read is cheap to write and leaves small files, which every reader pays for. Beyond
        some dozens of them the table is rewritten, and what marked rows of files that are gone is
        removed with them, or the next build would find as many; what the table says stays the same.
        The counts stand in the summary of its newest snapshot: asking costs no scan.
    -#}
    {%- set summary_sql -%}
        select
            cast(summary['total-data-files'] as int) + cast(summary['total-delete-files'] as int) as files,
            cast(summary['total-files-size'] as bigint) as bytes
        from {{ target }}.snapshots as snapshots
        where snapshot_id = {{ strandline.current_snapshot(target) or 0 }}
    {%- endset -%}
    {%- set found = run_query(summary_sql).rows -%}
    {%- if found and found[0][0] is not none
        and found[0][0] | int > 32 + 2 * ((found[0][1] | int) // 134217728) -%}
        {%- do strandline.rewrite(target) -%}
    {%- endif -%}
{%- endmacro %}
