{% macro rewrite_files(relation, alone=false) -%}
    {#- Merges small files. The rows do not change. The old files remain until their Iceberg
        snapshots expire. -#}
    {%- set owner = "rewrite_files(" ~ relation ~ ")" -%}
    {%- do strandline._rewrite_and_mark(strandline._maintained_table(relation, alone, owner)) -%}
{%- endmacro %}


{% macro _rewrite_and_mark(table) -%}
    {%- set mark = strandline._watermark(table) -%}
    {%- do strandline._call_procedure("rewrite_data_files", table,
        "options => map('delete-file-threshold', '1')") -%}
    {#- Position delete files may still refer to data files that no longer exist. -#}
    {%- do strandline._call_procedure("rewrite_position_delete_files", table,
        "options => map('rewrite-all', 'true')") -%}
    {%- do strandline._call_procedure("rewrite_manifests", table) -%}
    {%- if mark is not none and mark.is_exact -%}
        {#- Updates the snapshot in the watermark, because the earlier snapshots may expire. -#}
        {%- set properties = strandline._properties(table) -%}
        {%- set snapshot = strandline._snapshot(properties) -%}
        {%- if strandline._only_rewritten(table, mark.current, snapshot) -%}
            {%- set text = tojson(dict(fromjson(properties["strandline.watermark"]),
                snapshot=snapshot), sort_keys=true) -%}
            {%- do strandline._run(
                "alter table " ~ table ~ " set tblproperties ('strandline.watermark' = "
                ~ strandline._literal(strandline._encode(text)) ~ ")"
            ) -%}
        {%- endif -%}
    {%- endif -%}
{%- endmacro %}


{% macro _call_procedure(procedure, relation, arguments=none) -%}
    {#- The procedures of a catalog work only on tables of the same catalog. -#}
    {%- set catalog = relation.schema.partition(".")[0] -%}
    {%- if "." not in relation.schema or not strandline._is_iceberg_catalog(catalog) -%}
        {%- set catalog = strandline._value("select current_catalog()") -%}
    {%- endif -%}
    {%- set name = strandline._quote_path(relation.schema) ~ "."
        ~ strandline._quote(relation.identifier) -%}
    {%- set given = ["table => " ~ strandline._literal(name), arguments] | select | join(", ") -%}
    {{ return(run_query("call " ~ strandline._quote(catalog) ~ ".system." ~ procedure ~ "(" ~ given
        ~ ")")) }}
{%- endmacro %}
