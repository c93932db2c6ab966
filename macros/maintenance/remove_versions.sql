{% macro remove_versions(relation, going) -%}
    {#-
        Removes superseded rows in one commit, and accounts for them in the table's properties, which
        are written before the rows go: a run that dies in between leaves `removing`, which the next
        one settles by the table's own history. Python's twin is loader/maintenance/removal.py.
    -#}
    {%- set before = strandline.settle_removed(relation) -%}
    {%- set rows = strandline.count_rows(going.sql) -%}
    {%- if rows == 0 -%}
        {{ return(0) }}
    {%- endif -%}
    {%- set name = strandline.full_name(relation) -%}
    {%- set to = [before.to, going.batch] | max -%}
    {%- do strandline.set_removed(relation, {
        "rows": before.rows, "to": to, "removing": rows, "since": strandline.current_snapshot(name),
        "was": before.to,
    }) -%}
    {%- do strandline.run_statement(
        "delete from " ~ name ~ " where _cq_batch <= " ~ going.batch
        ~ " and (_cq_batch, _cq_seq) in (\n" ~ going.sql ~ "\n)"
    ) -%}
    {%- do strandline.set_removed(relation, {"rows": before.rows + rows, "to": to}) -%}
    {{ return(rows) }}
{%- endmacro %}


{% macro count_rows(sql) -%}
    {%- if sql is none -%}
        {{ return(0) }}
    {%- endif -%}
    {{ return(run_query("select count(*) from (\n" ~ sql ~ "\n) as counted").columns[0].values()[0] | int) }}
{%- endmacro %}


{% macro removed_rows(relation) -%}
    {#-
        What compaction took out of a raw table: {to, rows, removing, since, was}; `to` is the batch up to
        which versions may be missing, 0 where none are; `was` what it is if none of `removing` went.
    -#}
    {%- set properties = strandline.table_properties(relation) -%}
    {%- set said = fromjson(properties.get("strandline.compacted", "{}")) -%}
    {{ return({
        "to": said.get("to", properties.get("strandline.compacted_to", 0)) | int,
        "rows": said.get("rows", 0) | int,
        "removing": said.get("removing", 0) | int,
        "since": said.get("since"),
        "was": said.get("was", said.get("to", 0)) | int,
    }) }}
{%- endmacro %}


{% macro set_removed(relation, removed) -%}
    {%- do strandline.run_statement(
        "alter table " ~ strandline.full_name(relation) ~ " set tblproperties ("
        ~ "'write.delete.mode' = 'merge-on-read', "
        ~ "'strandline.compacted' = " ~ strandline.text_literal(tojson(removed, sort_keys=true)) ~ ", "
        ~ "'strandline.compacted_to' = '" ~ removed.to ~ "')"
    ) -%}
{%- endmacro %}


{% macro settle_removed(relation) -%}
    {#- What was removed so far; where a run died while it removed rows, the account is closed. -#}
    {%- set name = strandline.full_name(relation) -%}
    {%- set found = strandline.removed_rows(name) -%}
    {%- if found.removing == 0 -%}
        {{ return(found) }}
    {%- endif -%}
    {%- set happened_sql -%}
        select count(*)
        from {{ name }}.snapshots as snapshots
        left semi join {{ name }}.history as history
            on snapshots.snapshot_id = history.snapshot_id
            and history.is_current_ancestor
        where operation in ('delete', 'overwrite')
            and unix_millis(committed_at) > (
                select coalesce(max(unix_millis(committed_at)), 0)
                from {{ name }}.snapshots as snapshots
                where snapshot_id = {{ found.since }}
            )
    {%- endset -%}
    {%- set happened = run_query(happened_sql).columns[0].values()[0] | int > 0 -%}
    {#- Nothing went: every batch is whole, and `as_of` may be asked for all of them again. -#}
    {%- set closed = {
        "rows": found.rows + (found.removing if happened else 0), "to": found.to if happened else found.was
    } -%}
    {%- do strandline.set_removed(relation, closed) -%}
    {{ return(closed) }}
{%- endmacro %}
