{% macro compact_raw(
    relation, primary_key=none, cursor_field=none, keep_versions=none, keep_days=none, expire_days=5, alone=false,
    dry_run=false
) -%}
    {{- return(adapter.dispatch("compact_raw", "strandline")(
        relation, primary_key, cursor_field, keep_versions, keep_days, expire_days, alone, dry_run
    )) -}}
{%- endmacro %}


{% macro default__compact_raw(
    relation, primary_key, cursor_field, keep_versions, keep_days, expire_days, alone, dry_run
) -%}
    {#-
        Removes, rewrites, expires, each in one atomic commit that is right by itself: a run that dies
        leaves the table as it was or smaller, never different. Python's twin is loader/maintenance/compaction.py.
    -#}
    {%- set owner = "compact_raw(" ~ relation ~ ")" -%}
    {%- if keep_versions is none and keep_days is none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ " removes versions, so say which ones stay: keep_versions: 1 keeps the newest of each key, "
            ~ "keep_days: 30 what came in the last 30 days as well. Without removing any: rewrite_files, expire_snapshots."
        ) }}
    {%- endif -%}
    {%- set raw = strandline.maintained_table(relation, owner) -%}
    {%- if not dry_run -%}
        {%- do strandline.check_alone(alone, owner) -%}
    {%- endif -%}
    {%- set keys = strandline.key_columns(
        primary_key or strandline.tested_settings(raw).get("primary_key"), owner
    ) -%}
    {%- set cursor = strandline.tested_cursor(raw, cursor_field) -%}
    {%- set columns = adapter.get_columns_in_relation(raw) | map(attribute="name") | list -%}
    {%- do strandline.check_columns(keys, columns, owner, "primary_key") -%}
    {%- if cursor -%}
        {%- do strandline.check_columns([cursor], columns, owner, "cursor_field") -%}
    {%- endif -%}

    {%- set going = strandline.superseded(raw, keys, cursor, keep_versions or 1, keep_days, owner) -%}
    {%- if going.note -%}
        {{ log(owner ~ ": " ~ going.note, info=true) }}
    {%- endif -%}
    {%- if dry_run -%}
        {{ log(owner ~ ": " ~ "{:,}".format(strandline.count_rows(going.sql)) ~ " rows would go", info=true) }}
        {{ return(none) }}
    {%- endif -%}
    {%- set before = strandline.footprint(raw) -%}
    {%- do strandline.remove_versions(raw, going) -%}
    {%- do strandline.rewrite_raw(raw, cursor) -%}
    {%- do strandline.expire(raw, expire_days) -%}
    {{ return(strandline.tell_freed(owner, before, strandline.footprint(raw))) }}
{%- endmacro %}


{% macro superseded(raw, keys, cursor, versions, days, owner) -%}
    {#- What may go of a raw table as it is now: {batch, sql, note}; sql is none where nothing may. -#}
    {%- set sharers = strandline.sharers(strandline.full_name(raw)) -%}
    {%- if sharers and "_cq_source_name" not in keys -%}
        {%- set keys = ["_cq_source_name"] + keys -%}
    {%- endif -%}
    {%- set kept_from_it = [] -%}
    {%- for one in strandline.dependents() if strandline.depends_on(one, raw) -%}
        {%- do kept_from_it.append(one) -%}
        {%- if not strandline.agrees(one, keys, cursor) -%}
            {{ exceptions.raise_compiler_error(
                owner ~ ": " ~ one.name ~ " needs other versions: per " ~ one.primary_key | join(", ") ~ ", "
                ~ ("by " ~ one.cursor_field if one.cursor_field else "as they arrived") ~ ". Nothing was removed. Give "
                ~ "this primary_key and cursor_field, or drop the table if nobody reads it."
            ) }}
        {%- endif -%}
    {%- endfor -%}
    {%- set floor = none -%}
    {%- if cursor -%}
        {%- set floor = strandline.reachable_from(raw, cursor, owner, sharers) -%}
    {%- endif -%}
    {%- set horizon = strandline.compaction_horizon(raw, days, kept_from_it) -%}
    {%- if horizon.batch < 1 -%}
        {{ return({"batch": 0, "sql": none, "note": horizon.note}) }}
    {%- endif -%}
    {%- set histories = kept_from_it | selectattr("history") | map(attribute="name") | list -%}
    {%- if histories -%}
        {%- do horizon.update({"note": "only repeated rows may go: " ~ histories | join(", ") ~ " shows every version"}) -%}
    {%- endif -%}
    {%- set whole = [] -%}
    {%- for source in sharers -%}
        {%- do whole.append(strandline.head_batch(
            "(select * from " ~ strandline.full_name(raw) ~ " where _cq_source_name = "
            ~ strandline.text_literal(source) ~ ")"
        ) or 0) -%}
    {%- endfor -%}
    {{ return({
        "batch": horizon.batch,
        "sql": strandline.superseded_versions(
            strandline.full_name(raw), keys, cursor, horizon.batch, versions, floor, histories | length > 0, whole
        ),
        "note": horizon.note,
    }) }}
{%- endmacro %}
