{% macro head_batch(relation) -%}
    {#- Iceberg answers an unfiltered max() from its metadata; none where there is no row. -#}
    {%- set batch = run_query("select max(_cq_batch) from " ~ relation ~ " as versions").columns[0].values()[0] -%}
    {{ return(batch | int if batch is not none else none) }}
{%- endmacro %}


{% macro current_snapshot(relation) -%}
    {%- set found = run_query(
        "select cast(snapshot_id as string) from " ~ relation ~ ".refs where name = 'main'"
    ).columns[0].values() -%}
    {{ return(found[0] if found else none) }}
{%- endmacro %}


{% macro watermark(relation) -%}
    {#-
        What a table of a deduped_ materialization covers: {batch, generation_floor, snapshot_id,
        primary_key, cursor_field, raw, raw_ids, materialization, exact, said}. The property is believed while the
        table's content is the one that it was written for (`exact`). After a crash between merge
        and property, a rollback or a foreign write, the newest batch among the table's own rows
        takes its place: never above what was applied, at worst a batch is merged again, which
        changes nothing. `said` is the batch of the property all the same. none: not a table of ours.
    -#}
    {%- set properties = strandline.table_properties(relation) -%}
    {%- if "strandline.watermark" not in properties -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set stored = fromjson(properties["strandline.watermark"]) -%}
    {%- set snapshot = strandline.current_snapshot(relation) -%}
    {%- do stored.update({
        "exact": snapshot is not none and stored.get("snapshot_id") == snapshot,
        "materialization": properties.get("strandline.materialization", "deduped_latest"),
        "said": stored["batch"],
    }) -%}
    {%- if not stored["exact"] -%}
        {%- do stored.update({"batch": strandline.head_batch(relation) or 0}) -%}
    {%- endif -%}
    {{ return(stored) }}
{%- endmacro %}


{% macro raw_identity(relation) -%}
    {#- What the loader called a raw table when it made it; none for one that it did not make. -#}
    {{ return(strandline.table_properties(strandline.full_name(relation)).get("strandline.table-id")) }}
{%- endmacro %}


{% macro watermark_text(goal, snapshot_id=none) -%}
    {{- return(tojson({
        "batch": goal.head or 0,
        "cursor_field": goal.cursor_field,
        "generation_floor": goal.floor,
        "primary_key": goal.primary_key,
        "raw": goal.raw,
        "raw_ids": goal.raw_ids,
        "snapshot_id": snapshot_id,
    }, sort_keys=true)) -}}
{%- endmacro %}


{% macro set_watermark(relation, goal) -%}
    {%- set text = strandline.watermark_text(goal, strandline.current_snapshot(relation)) -%}
    {%- do strandline.run_statement(
        "alter table " ~ relation ~ " set tblproperties ('strandline.watermark' = "
        ~ strandline.text_literal(text) ~ ")"
    ) -%}
{%- endmacro %}
