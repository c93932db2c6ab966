{% macro head_batch(relation) -%}
    {#- Iceberg answers an unfiltered max() from its metadata; none if there are no rows. -#}
    {%- set batch = run_query("select max(_cq_batch) from " ~ relation ~ " as versions").columns[0].values()[0] -%}
    {{ return(batch | int if batch is not none else none) }}
{%- endmacro %}


{% macro current_snapshot(relation) -%}
    {{ return(strandline.snapshot_in(strandline.table_properties(relation))) }}
{%- endmacro %}


{% macro snapshot_in(properties) -%}
    {#- Iceberg lists the current snapshot among a table's properties: no query, and both are of the same moment. -#}
    {%- set snapshot = properties.get("current-snapshot-id", "none") -%}
    {{ return(none if snapshot == "none" else snapshot) }}
{%- endmacro %}


{% macro watermark(relation) -%}
    {#-
        What a table of a deduped_ materialization covers: {batches, said, exact, generation_floor,
        snapshot_id, primary_key, cursor_field, row_filter, raw, raw_ids, raw_snapshots, raw_types, others, definition,
        select, columns, types, materialization, current}.
        `batches` ({raw table: newest batch}) is trusted as long as the table's content is the one that it was
        written for (`exact`). It is not after a crash between the merge and the property, a rollback or a
        foreign write, or if a column has been dropped since (which makes no Iceberg snapshot). Then `batches`
        holds the newest batches in the table's own rows, the most that those show as applied, and
        build_plan() no longer trusts the content. `said` still has the property's batches, for proofs: a table
        that lost rows does not show it. Returns none for a table that no deduped_ materialization built.
    -#}
    {%- set properties = strandline.table_properties(relation) -%}
    {%- if "strandline.watermark" not in properties -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set stored = fromjson(properties["strandline.watermark"]) -%}
    {%- set snapshot = strandline.snapshot_in(properties) -%}
    {%- if "batches" not in stored -%}
        {#- Written by a version of this package that knew only one raw table. -#}
        {%- do stored.update({"batches": {(stored.get("raw") or [""])[0]: stored["batch"]}}) -%}
    {%- endif -%}
    {%- set types = strandline.query_types("select * from " ~ relation) -%}
    {%- do stored.update({
        "exact": (
            strandline.descends(relation, stored.get("snapshot_id"), snapshot, by="replace")
            and stored.get("columns", []) | map("lower") | reject("in", types) | list == []
        ),
        "types": types,
        "materialization": properties.get("strandline.materialization", "deduped_latest"),
        "said": stored["batches"],
        "current": snapshot,
        "select": properties.get("strandline.select"),
    }) -%}
    {%- if not stored["exact"] -%}
        {%- do stored.update({"batches": strandline.own_batches(relation, stored["said"] | list, types)}) -%}
    {%- endif -%}
    {{ return(stored) }}
{%- endmacro %}


{% macro has_columns(relation, names) -%}
    {%- set present = strandline.query_types("select * from " ~ relation) if names else {} -%}
    {{ return(names | map("lower") | reject("in", present) | list == []) }}
{%- endmacro %}


{% macro own_batches(relation, names, columns) -%}
    {#- The newest batch of each raw table in a table's own rows; 0 if the rows do not say. -#}
    {%- set batches = {} -%}
    {%- for name in names -%}
        {%- do batches.update({name: 0}) -%}
    {%- endfor -%}
    {%- if "_cq_batch" not in columns or (names | length > 1 and "_cq_table" not in columns) -%}
        {{ return(batches) }}
    {%- elif names | length == 1 -%}
        {%- do batches.update({names[0]: strandline.head_batch(relation) or 0}) -%}
    {%- elif names -%}
        {%- for row in run_query("select _cq_table, max(_cq_batch) from " ~ relation ~ " as versions group by 1") if row[0] in batches -%}
            {%- do batches.update({row[0]: row[1] | int}) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(batches) }}
{%- endmacro %}


{% macro watermark_text(goal, snapshot_id=none, columns=none) -%}
    {%- set batches = {} -%}
    {%- set raw_ids = {} -%}
    {%- set raw_snapshots = {} -%}
    {%- set raw_types = {} -%}
    {%- for table in goal.tables -%}
        {%- do batches.update({table.name: table.head}) -%}
        {%- do raw_ids.update({table.name: table.id} if table.name else {}) -%}
        {%- do raw_snapshots.update({table.name: table.snapshot} if table.snapshot else {}) -%}
        {%- do raw_types.update({table.name: table.types} if goal.computes else {}) -%}
    {%- endfor -%}
    {{- return(strandline.veiled(tojson({
        "batch": batches.values() | min,
        "batches": batches,
        "columns": columns or [],
        "cursor_field": goal.cursor_field,
        "definition": goal.definition,
        "generation_floor": goal.floor,
        "others": goal.others,
        "primary_key": goal.primary_key,
        "raw": goal.tables | map(attribute="name") | select | list,
        "raw_ids": raw_ids,
        "raw_snapshots": raw_snapshots,
        "raw_types": raw_types,
        "row_filter": goal.row_filter,
        "snapshot_id": snapshot_id,
    }, sort_keys=true))) -}}
{%- endmacro %}


{% macro set_watermark(relation, goal, sql, snapshot=none) -%}
    {#- `snapshot` is the table's, if the build knows it already. -#}
    {%- set text = strandline.watermark_text(
        goal, snapshot or strandline.current_snapshot(relation), goal.stored or strandline.column_names(relation)
    ) -%}
    {%- do strandline.run_statement(
        "alter table " ~ relation ~ " set tblproperties ('strandline.watermark' = " ~ strandline.text_literal(text)
        ~ ", 'strandline.select' = " ~ strandline.text_literal(strandline.veiled(sql)) ~ ")"
    ) -%}
{%- endmacro %}
