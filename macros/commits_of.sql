{% macro commits_of(raw, snapshot=none) -%}
    {#-
        The commits of a raw table that have not expired: snapshot_id, operation, committed_at, batch (null for
        maintenance and for commits of others), rows_added, rows_removed. Rows that a delete or an update
        rewrites unchanged into new files count as both added and removed. Staged snapshots that were never
        published are not ancestors of the table. A cherry-picked commit carries only its batch, as the id it was
        published by; the rest of its summary stays with the staged one. With a `snapshot`, leaves out later commits.
    -#}
    {%- set counts = [] -%}
    {%- for name in ["deleted-records", "added-position-deletes", "added-equality-deletes"] -%}
        {%- do counts.append("coalesce(cast(published.summary['" ~ name ~ "'] as bigint), 0)") -%}
    {%- endfor -%}
            select
                published.snapshot_id,
                published.operation,
                published.committed_at,
                cast(coalesce(
                    published.summary['strandline.batch'],
                    if(
                        staged.snapshot_id is null or staged.summary['strandline.batch'] is not null,
                        published.summary['published-wap-id'],
                        null
                    )
                ) as bigint) as batch,
                coalesce(cast(published.summary['added-records'] as bigint), 0) as rows_added,
                {{ counts | join(" + ") }} as rows_removed
            {{ strandline.commit_chain(raw) }}
            {%- if snapshot is not none %}
            where published.committed_at <= (
                select committed_at
                from {{ raw }}.snapshots as snapshots
                where snapshot_id = {{ snapshot }}
            )
            {%- endif %}
{%- endmacro %}


{% macro commit_chain(raw) -%}
    {#-
        FROM and JOIN clauses for a raw table's commits: `published`, one row for each, and next to it `staged`
        if that commit was published on top of somebody else's.
    -#}
from {{ raw }}.snapshots as published
left semi join {{ raw }}.history as history
    on published.snapshot_id = history.snapshot_id
    and history.is_current_ancestor
left join {{ raw }}.snapshots as staged
    on published.summary['source-snapshot-id'] = cast(staged.snapshot_id as string)
{%- endmacro %}


{% macro commit_says(what) -%}
    {#- What a commit of `commit_chain` records about its batch: `batch`, `state` or `sync`. -#}
coalesce(published.summary['strandline.{{ what }}'], staged.summary['strandline.{{ what }}'])
{%- endmacro %}


{% macro first_batch(properties) -%}
    {#- The batch that a raw table began with: the ledger also has rows for a dropped table of the same name. -#}
    {{ return(properties.get("strandline.first-batch", 1) | int) }}
{%- endmacro %}


{% macro kept_batch(properties) -%}
    {#- An expression for the newest batch whose commit compaction has kept. -#}
    {%- set kept = fromjson(properties.get("strandline.newest", "{}")).get("batch") -%}
    {{ return(kept ~ "L" if kept is not none else "cast(null as bigint)") }}
{%- endmacro %}


{% macro removed_rows(properties) -%}
    {#-
        What compaction removed from a raw table: {to, rows, removing, since, was}. `to` is the batch up to
        which versions may be missing, 0 if none are; `was` is the value of `to` if none of `removing` went.
    -#}
    {%- set said = fromjson(properties.get("strandline.compacted", "{}")) -%}
    {{ return({
        "to": said.get("to", properties.get("strandline.compacted_to", 0)) | int,
        "rows": said.get("rows", 0) | int,
        "removing": said.get("removing", 0) | int,
        "since": said.get("since"),
        "was": said.get("was", said.get("to", 0)) | int,
    }) }}
{%- endmacro %}
