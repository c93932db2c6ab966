{% macro _watermark(relation) -%}
    {#- Returns the properties that a table's last build stored, or none if no deduped_
        materialization built the table: {kind, tables, key, cursor, row_filter, union, floor,
        definition, snapshot, columns, select, proved, turn, failed_turns, day, current,
        is_exact}. `is_exact` is true if only rewrites of files have changed the table since that
        build. -#}
    {%- set properties = strandline._properties(relation) -%}
    {%- if "strandline.watermark" not in properties -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set mark = fromjson(properties["strandline.watermark"]) -%}
    {%- set current = strandline._snapshot(properties) -%}
    {%- do mark.update({
        "select": properties.get("strandline.select"),
        "proved": fromjson(properties.get("strandline.proved", "{}")),
        "turn": properties.get("strandline.turn", 0) | int,
        "failed_turns": fromjson(properties.get("strandline.failed_turns", "{}")),
        "day": properties.get("strandline.day"),
        "is_of_this_run": properties.get("strandline.build") == invocation_id,
        "current": current,
        "is_exact": mark.snapshot is not none and (
            mark.snapshot == current or strandline._only_rewritten(relation, mark.snapshot, current)
        ),
    }) -%}
    {{ return(mark) }}
{%- endmacro %}


{% macro _only_rewritten(relation, since, current) -%}
    {#- Returns whether all commits after an Iceberg snapshot only rewrote files, without changing
        rows. -#}
    {{ return(strandline._lineage({"relation": relation, "snapshot": current},
        since).is_rewritten) }}
{%- endmacro %}


{% macro _watermark_properties(spec, snapshot, verdicts) -%}
    {#- Returns the table's properties. Strings that contain names or SQL are encoded; see
        _encode(). -#}
    {%- set tables = [] -%}
    {%- for table in spec.tables -%}
        {%- do tables.append({
            "name": table.name,
            "batch": table.head,
            "id": table.id,
            "snapshot": table.snapshot,
            "types": local_md5(tojson(table.types, sort_keys=true)),
            "floor": table.floor,
            "refreshes": table.refreshes,
        }) -%}
    {%- endfor -%}
    {%- set batches = spec.tables | map(attribute="head") | map("string") | join(",") -%}
    {%- set mark = dict(
        spec.items() | selectattr("0", "in", ["kind", "key", "cursor", "row_filter", "union",
            "floor", "refreshes", "definition", "config", "columns"]),
        tables=tables,
        every_build=spec.every_build is not none,
        types=strandline._stored_types(spec),
        snapshot=snapshot,
    ) -%}
    {%- set properties = {
        "strandline.batch": batches,
        "strandline.watermark": strandline._encode(tojson(mark, sort_keys=true)),
        "strandline.select": strandline._encode(spec.sql),
    } -%}
    {%- do properties.update(strandline._verdict_properties(verdicts)) -%}
    {{ return(properties) }}
{%- endmacro %}


{% macro _stored_types(spec) -%}
    {#- Returns the types that tests need: the type of the cursor_field, and of columns with maps,
        which Spark cannot compare. -#}
    {%- set types = {} -%}
    {%- for name, column in spec.types.items() if name == (spec.cursor or "") | lower
        or "map<" in column.type -%}
        {%- do types.update({name: column}) -%}
    {%- endfor -%}
    {{ return(types) }}
{%- endmacro %}


{% macro _verdict_properties(verdicts) -%}
    {{ return({
        "strandline.proved": strandline._encode(tojson(verdicts.get("proved", {}), sort_keys=true)),
        "strandline.turn": verdicts.get("turn", 0) | string,
        "strandline.failed_turns": tojson(verdicts.get("failed_turns", {}), sort_keys=true),
        "strandline.day": verdicts.get("day", "") | string,
        "strandline.build": invocation_id,
    }) }}
{%- endmacro %}


{% macro _spec_of(mark) -%}
    {#- Returns the contents of the table according to its watermark, in the format of _spec(). -#}
    {%- set tables = [] -%}
    {%- for table in mark.tables -%}
        {%- do tables.append(dict(table, head=table.batch)) -%}
    {%- endfor -%}
    {{ return(dict(mark, sql=mark.select, tables=tables)) }}
{%- endmacro %}


{% macro _finish(target_table, spec, mark, plan, owner) -%}
    {#- Checks the new rows after the write, and stores watermark and verdicts in one ALTER. If
        there are no new rows, checks one bucket of keys once a day. Finally rewrites the
        table's files if there are too many files. If the rewrite fails, the watermark remains
        valid. -#}
    {%- set wrote = plan.step != "nothing" -%}
    {%- set is_due = wrote or mark.day != run_started_at.strftime("%Y-%m-%d")
        or strandline._prove_all() -%}
    {%- set checks = strandline._attached_checks(
        strandline._subject_of(spec, target_table), owner) -%}
    {%- if not wrote and not (checks and (
        is_due or strandline._has_unproved(checks, spec, mark))) -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set written = strandline._properties(target_table) if wrote else {} -%}
    {%- set snapshot = strandline._snapshot(written) if wrote else mark.current -%}
    {%- set verdicts = strandline._prove(target_table, spec, mark, plan, checks, snapshot) -%}
    {%- set commit = verdicts.commit -%}
    {%- if plan.step == "merge" -%}
        {%- set is_own = snapshot == mark.current or commit.parent == mark.current
            or strandline._only_rewritten(target_table, mark.current, commit.parent) -%}
    {%- else -%}
        {#- The first snapshot of a replaced table has no parent. -#}
        {%- set is_own = not wrote or commit and not commit.parent
            and written.get("strandline.build") == invocation_id -%}
    {%- endif -%}
    {%- if not is_own -%}
        {%- set snapshot = none -%}
        {%- do exceptions.warn(
            owner ~ ": another program wrote to " ~ target_table ~ " during the build. The next "
            ~ "build rebuilds the table."
        ) -%}
    {%- endif -%}
    {%- set properties = strandline._verdict_properties(verdicts) if plan.get("is_unchanged")
        else strandline._watermark_properties(spec, snapshot, verdicts) -%}
    {%- set assignments = [] -%}
    {%- for name, value in properties.items() -%}
        {%- do assignments.append(strandline._literal(name) ~ " = "
            ~ strandline._literal(value)) -%}
    {%- endfor -%}
    {%- do strandline._run("alter table " ~ target_table ~ " set tblproperties ("
        ~ assignments | join(", ") ~ ")") -%}
    {%- if plan.step == "merge" and is_own and strandline._is_fragmented(commit) -%}
        {%- do strandline._rewrite_and_mark(target_table) -%}
    {%- endif -%}
{%- endmacro %}


{% macro _written_commit_sql(target_table, snapshot) -%}
    select 'commit', to_json(struct(
        cast(parent_id as string) as parent,
        cast(summary['total-data-files'] as int) + cast(summary['total-delete-files'] as int)
            as files,
        cast(summary['total-files-size'] as bigint) as bytes,
        cast(summary['total-records'] as bigint) as records,
        cast(summary['total-position-deletes'] as bigint) as deletes
    ))
    from {{ target_table }}.snapshots
    where snapshot_id = {{ snapshot }}
{%- endmacro %}


{% macro _is_fragmented(commit) -%}
    {#- Returns whether the table has too many files or deleted rows, according to the commit's
        summary. Merges leave small files and delete files, which slow down every reader, so a table
        with too many of them is rewritten. -#}
    {{ return(commit.get("files", 0) > 32 + 2 * (commit.get("bytes", 0) // 134217728)
        or commit.get("deletes", 0) > [1000000, commit.get("records", 0) // 2] | max) }}
{%- endmacro %}
