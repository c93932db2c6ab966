{% macro commits_of(raw, snapshot=none) -%}
    {#-
        The commits that a raw table has gone through, as far as they have not expired: snapshot_id, operation,
        committed_at, batch (null of others' and of maintenance), rows_added, rows_removed. Rows that a delete or
        an update leaves in their files, written anew, are added and removed. Staged snapshots that were
        never published are no ancestors of the table; a cherry-picked one carries its batch as the id it was
        published by, and what else it says stayed with the staged one. With a `snapshot`, none that came after it.
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
            {{ strandline.commit_chain(raw) | indent(12) }}
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
        FROM and JOIN of a raw table's commits: `published`, a row for each that the table has gone through, and
        beside it `staged`, where that one was published over somebody else's commit.
    -#}
from {{ raw }}.snapshots as published
left semi join {{ raw }}.history as history
    on published.snapshot_id = history.snapshot_id
    and history.is_current_ancestor
left join {{ raw }}.snapshots as staged
    on published.summary['source-snapshot-id'] = cast(staged.snapshot_id as string)
{%- endmacro %}


{% macro commit_says(what) -%}
    {#- What a commit of `commit_chain` says of its batch: `batch`, `state` or `sync`. -#}
coalesce(published.summary['strandline.{{ what }}'], staged.summary['strandline.{{ what }}'])
{%- endmacro %}


{% macro first_batch(raw) -%}
    {#- The batch that a raw table began with: the ledger also knows the life of a dropped one of its name. -#}
    {{ return(strandline.table_properties(raw).get("strandline.first-batch", 1) | int) }}
{%- endmacro %}


{% macro kept_batch(raw) -%}
    {#- The newest batch whose commit compaction has kept, as an expression. -#}
    {%- set kept = fromjson(strandline.table_properties(raw).get("strandline.newest", "{}")).get("batch") -%}
    {{ return(kept ~ "L" if kept is not none else "cast(null as bigint)") }}
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
