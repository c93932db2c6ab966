{% macro footprint(relation) -%}
    {#-
        What a table takes: {rows, files, bytes, stored, snapshots}. files and bytes are those of what
        it says now, stored is the size of all files that any of its snapshots refers to.
    -#}
    {%- set name = strandline.full_name(relation) -%}
    {%- set size_sql -%}
        select
            (select count(*) from {{ name }}),
            (select count(*) from {{ name }}.files),
            (select coalesce(sum(file_size_in_bytes), 0) from {{ name }}.files),
            (
                select coalesce(sum(file_size_in_bytes), 0)
                from (select distinct file_path, file_size_in_bytes from {{ name }}.all_files)
            ),
            (select count(*) from {{ name }}.snapshots)
    {%- endset -%}
    {%- set row = run_query(size_sql).rows[0] -%}
    {{ return({
        "rows": row[0] | int, "files": row[1] | int, "bytes": row[2] | int, "stored": row[3] | int, "snapshots": row[4] | int,
    }) }}
{%- endmacro %}


{% macro tell_freed(owner, before, after) -%}
    {%- set told = [] -%}
    {%- for measure in ["rows", "files", "bytes", "stored", "snapshots"] -%}
        {%- do told.append(measure ~ " " ~ "{:,}".format(before[measure]) ~ " -> " ~ "{:,}".format(after[measure])) -%}
    {%- endfor -%}
    {{ log(owner ~ ": " ~ told | join(", "), info=true) }}
    {{ return({"before": before, "after": after}) }}
{%- endmacro %}
