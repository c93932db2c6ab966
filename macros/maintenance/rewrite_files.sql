{% macro rewrite_files(relation, alone=false) -%}
    {{- return(adapter.dispatch("rewrite_files", "strandline")(relation, alone)) -}}
{%- endmacro %}


{% macro default__rewrite_files(relation, alone) -%}
    {#- Says the same before and after. What the files were stays until their snapshots expire. -#}
    {%- set owner = "rewrite_files(" ~ relation ~ ")" -%}
    {%- set table = strandline.maintained_table(relation, owner) -%}
    {%- do strandline.check_alone(alone, owner) -%}
    {%- set name = strandline.full_name(table) -%}
    {%- set before = strandline.footprint(table) -%}
    {%- set covered = strandline.watermark(name) -%}
    {%- if strandline.is_raw(name) -%}
        {%- set syncs = strandline.syncs_relation(table.schema) -%}
        {%- set cursor = strandline.tested_cursor(table, none) -%}
        {%- if not cursor and strandline.exists(syncs) -%}
            {%- set cursor = strandline.synced_cursor(syncs, table.identifier) -%}
        {%- endif -%}
        {%- do strandline.rewrite_raw(table, cursor) -%}
    {%- else -%}
        {%- do strandline.rewrite(table) -%}
    {%- endif -%}
    {%- if covered is not none and covered.exact -%}
        {#- The same content: the watermark still tells what it covers. -#}
        {%- do strandline.confirm_watermark(name) -%}
    {%- endif -%}
    {{ return(strandline.tell_freed(owner, before, strandline.footprint(table))) }}
{%- endmacro %}


{% macro rewrite_raw(relation, cursor_field) -%}
    {#-
        The batches but the newest, in few large files, without the rows that were removed: sorted by
        batch and cursor, so that builds still read only the batches that they have not merged, and
        syncs the rows at their boundary. The newest batch, where both begin, keeps its files.
    -#}
    {%- set head = strandline.head_batch(strandline.full_name(relation)) or 0 -%}
    {%- if head < 2 -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set order = ["_cq_batch"] -%}
    {%- if cursor_field and strandline.column_type(relation, cursor_field) -%}
        {%- do order.append(strandline.quoted(cursor_field)) -%}
    {%- endif -%}
    {%- do order.append("_cq_seq") -%}
    {%- do strandline.rewrite(
        relation, order | join(" asc nulls first, ") ~ " asc nulls first", "_cq_batch < " ~ head
    ) -%}
{%- endmacro %}


{% macro rewrite(relation, order=none, condition=none) -%}
    {%- set given = {} -%}
    {%- if order -%}
        {%- do given.update({"strategy": "sort", "sort_order": order}) -%}
    {%- endif -%}
    {%- if condition -%}
        {%- do given.update({"where": condition}) -%}
    {%- endif -%}
    {%- do strandline.iceberg_call("rewrite_data_files", relation, given, {"delete-file-threshold": "1"}) -%}
    {#- What marked removed rows may refer to files that are gone. -#}
    {%- do strandline.iceberg_call("rewrite_position_delete_files", relation, {}, {"rewrite-all": "true"}) -%}
    {%- do strandline.iceberg_call("rewrite_manifests", relation, {}, {}) -%}
{%- endmacro %}


{% macro iceberg_call(procedure, relation, given, options) -%}
    {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] -%}
    {%- set arguments = ["table => " ~ strandline.text_literal(strandline.full_name(relation))] -%}
    {%- for name, value in given.items() -%}
        {%- do arguments.append(name ~ " => " ~ strandline.text_literal(value)) -%}
    {%- endfor -%}
    {%- if options -%}
        {%- set pairs = [] -%}
        {%- for name, value in options.items() -%}
            {%- do pairs.append(strandline.text_literal(name) ~ ", " ~ strandline.text_literal(value)) -%}
        {%- endfor -%}
        {%- do arguments.append("options => map(" ~ pairs | join(", ") ~ ")") -%}
    {%- endif -%}
    {{ return(run_query(
        "call " ~ strandline.quoted(catalog) ~ ".system." ~ procedure ~ "(" ~ arguments | join(", ") ~ ")"
    )) }}
{%- endmacro %}


{% macro confirm_watermark(name) -%}
    {%- set stored = fromjson(strandline.table_properties(name)["strandline.watermark"]) -%}
    {%- do stored.update({"snapshot_id": strandline.current_snapshot(name)}) -%}
    {%- do strandline.run_statement(
        "alter table " ~ name ~ " set tblproperties ('strandline.watermark' = "
        ~ strandline.text_literal(strandline.veiled(tojson(stored, sort_keys=true))) ~ ")"
    ) -%}
{%- endmacro %}
