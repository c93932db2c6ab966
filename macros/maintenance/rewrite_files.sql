{% macro rewrite_files(relation, alone=false) -%}
    {{- return(adapter.dispatch("rewrite_files", "strandline")(relation, alone)) -}}
{%- endmacro %}


{% macro spark__rewrite_files(relation, alone) -%}
    {#- The table's rows stay the same. The old files stay until their Iceberg snapshots expire. -#}
    {%- set owner = "rewrite_files(" ~ relation ~ ")" -%}
    {%- set table = strandline.maintained_table(relation, alone, owner) -%}
    {%- set name = strandline.full_name(table) -%}
    {%- set covered = strandline.watermark(name) -%}
    {%- do strandline.rewrite(table) -%}
    {%- if covered is not none and covered.exact
        and strandline.descends(name, covered.current, strandline.current_snapshot(name), by="replace") -%}
        {#- The content is the same, so the watermark still says what it covers. -#}
        {%- do strandline.confirm_watermark(name) -%}
    {%- endif -%}
{%- endmacro %}


{% macro rewrite(relation) -%}
    {%- do strandline.iceberg_call("rewrite_data_files", relation, "options => map('delete-file-threshold', '1')") -%}
    {#- Position delete files may still refer to data files that are gone. -#}
    {%- do strandline.iceberg_call("rewrite_position_delete_files", relation, "options => map('rewrite-all', 'true')") -%}
    {%- do strandline.iceberg_call("rewrite_manifests", relation) -%}
{%- endmacro %}


{% macro iceberg_call(procedure, relation, arguments=none) -%}
    {#- A procedure works on the tables of its own catalog. -#}
    {%- set catalog = relation.schema.partition(".")[0] -%}
    {%- if "." not in relation.schema or not strandline.is_iceberg_catalog("spark.sql.catalog." ~ catalog) -%}
        {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] -%}
    {%- endif -%}
    {%- set given = ["table => " ~ strandline.text_literal(strandline.full_name(relation)), arguments] | select | join(", ") -%}
    {{ return(run_query("call " ~ strandline.quoted(catalog) ~ ".system." ~ procedure ~ "(" ~ given ~ ")")) }}
{%- endmacro %}


{% macro confirm_watermark(name) -%}
    {%- set stored = fromjson(strandline.table_properties(name)["strandline.watermark"]) -%}
    {%- do stored.update({"snapshot_id": strandline.current_snapshot(name)}) -%}
    {%- do strandline.run_statement(
        "alter table " ~ name ~ " set tblproperties ('strandline.watermark' = "
        ~ strandline.text_literal(strandline.veiled(tojson(stored, sort_keys=true))) ~ ")"
    ) -%}
{%- endmacro %}
