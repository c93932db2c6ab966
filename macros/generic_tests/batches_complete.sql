{% test batches_complete(model) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {%- set syncs = strandline._records(model, "_cq_syncs") if strandline._is_testing()
        else model %}
    {%- if not strandline._is_testing() %}
        {{ strandline._nothing() }}
    {%- elif not strandline._exists(syncs) %}
        {{ strandline._missing_table(syncs, "`loader state rebuild` creates the ledger again") }}
    {%- else %}
        {%- if not strandline._declared_tables(syncs.schema) %}
            {%- do exceptions.warn(
                "No source of this project with config.meta.strandline is in the schema "
                ~ syncs.schema ~ ", whose ledger is " ~ syncs ~ ": no raw table is tested. Declare "
                ~ "the raw tables as sources (`loader codegen` writes them)."
            ) %}
        {%- endif %}
        {{ strandline._judge_batches(syncs, "cq_sync_log").sql }}
    {%- endif %}
{% endtest %}


{% macro _judge_batches(syncs, model_name, only_new=false) -%}
    {#- Returns the result of _read_fingerprints() and `sql`, the SELECT of the failing batches.
        With `only_new`, first counts the batches since the last verdict, and excludes the tables
        for which this suffices. -#}
    {%- set read = strandline._read_fingerprints(syncs, strandline._ledger_tables(syncs.schema),
        "case when batch is not null then table_name end", model_name) -%}
    {%- for table in read.unproved -%}
        {%- do table.update(strandline._raw_facts(table)) -%}
    {%- endfor -%}
    {%- if only_new -%}
        {%- do read.update({"unproved": strandline._exclude_extended(read)}) -%}
    {%- endif -%}
    {{ return(dict(read, sql=strandline._batches_complete_sql(
        syncs, read, strandline._lost_tables(syncs.schema)))) }}
{%- endmacro %}


{% macro _batches_complete_sql(syncs, read, lost) -%}
    {#-
        Compares the batches in the raw tables, the ledger and the commits. A running loader
        publishes data first, then writes the state, then the ledger row. Therefore:
        - A batch below the newest batch of a raw table must be in the ledger, because its ledger row
          is written before the next batch starts. The newest batch may lack a ledger row, because
          its sync is running or the next run recovers it.
        - A batch that was in the ledger before the raw table was read must be in the raw table.
          A later batch that is newer than the raw table's newest batch is ignored; the next run of
          this test checks it.
    -#}
    {%- set tables = read.unproved -%}
    {%- set facts = [] -%}
    {%- for table in tables -%}
        {%- do facts.append([table.name, table.first, table.compacted, table.removed,
            table.removing, table.acknowledged_rows, table.kept, table.shared]) -%}
    {%- endfor -%}
    {%- if not tables and not lost -%}
        {{ strandline._nothing() }}
    {%- endif -%}
    {%- if tables -%}
    with tables as (
        {{ strandline._literal_rows({"table_name": "string", "first_batch": "bigint",
            "compacted": "bigint", "removed": "bigint", "removing": "bigint",
            "acknowledged_rows": "bigint", "kept": "bigint", "shared": "boolean"}, facts) }}
    ),

    raw_rows as (
        select
            table_name,
            batch,
            count(*) as rows_in_raw,
            max(generation) as generation_in_raw,
            count(*) - count(generation) as rows_without_generation
        from (
            {%- for table in tables %}
            select {{ strandline._literal(table.name) }} as table_name, _cq_batch as batch,
                _cq_generation as generation
            from {{ strandline._pinned(table.relation, table.get("snapshot")) }} as versions
            {{- "\n            union all" if not loop.last }}
            {%- endfor %}
        ) as versions
        group by table_name, batch
    ),

    ledger as (
        select
            syncs.table_name,
            syncs.batch,
            count(*) as ledger_entries,
            max(syncs.rows_appended) as rows_in_ledger,
            max(syncs.generation) as generation,
            max(case when syncs.mode = 'full_refresh' then 1 else 0 end) as refreshed,
            max(syncs.source_name) as source_name
        from {{ read.after }} as syncs
        inner join tables
            on syncs.table_name = tables.table_name
            and syncs.batch >= tables.first_batch
        group by syncs.table_name, syncs.batch
    ),

    ledger_before as (
        select
            table_name,
            max(batch) as newest_before
        from {{ read.before }} as syncs
        group by table_name
    ),

    commits as (
        select
            table_name,
            batch,
            -- A commit by another program has no batch number, so it has a separate row.
            case when batch is null then snapshot_id end as snapshot_id,
            count(*) as commits,
            sum(rows_added) as rows_in_commits,
            sum(rows_removed) as rows_removed,
            max(committed_at) as committed_at,
            max(operation) as operation
        from (
            {{ adapter.dispatch("_commits", "strandline")(tables) }}
        ) as commits_of_tables
        group by table_name, batch, case when batch is null then snapshot_id end
    ),

    facts as (
        select *
        from raw_rows
        full join ledger using (table_name, batch)
        full join commits using (table_name, batch)
    ),

    accounts as (
        select
            *,
            coalesce(max(case when rows_in_raw is not null then batch end)
                over (partition by table_name), 0) as head,
            rows_in_raw is not null as in_raw,
            coalesce(batch <= compacted, false) as is_compacted,
            lag(batch) over (partition by table_name order by batch nulls first) as batch_before,
            coalesce(min(case when commits is not null then batch end)
                over (partition by table_name), kept) as first_commit,
            -- A later full refresh has read missing rows again. In a shared table, it has read only
            -- rows of its own source.
            max(case when refreshed = 1 then batch end) over (
                partition by table_name, case when shared then source_name end
            ) as refresh,
            max(case when refreshed = 1 then committed_at end) over (partition by table_name)
                as refreshed_at,
            sum(case when batch between first_batch and compacted then coalesce(rows_in_raw, 0) end)
                over (partition by table_name) as compacted_in_raw,
            sum(case when batch between first_batch and compacted then rows_in_ledger end)
                over (partition by table_name) as compacted_in_ledger,
            -- A rebuilt ledger may lack the number of rows of a compacted batch.
            max(case when batch between first_batch and compacted and rows_in_ledger is null
                then 1 else 0 end) over (partition by table_name) as compacted_is_unknown
        from facts
        inner join tables using (table_name)
        left join ledger_before using (table_name)
    ),

    judged as (
        select
            *,
            coalesce(
                batch < refresh and coalesce(rows_in_raw, 0)
                    < coalesce(rows_in_ledger, rows_in_commits, 1), false
            ) as read_again
        from accounts
    ),

    -- Each row is checked in three ways: (1) the batch itself, (2) whether batch numbers before it
    -- are missing, (3) the sum of the rows in compacted batches.
    problems as (
        select
            table_name,
            case when question = 2 then greatest(coalesce(batch_before, 0) + 1, first_batch)
                else batch end as batch,
            case when question = 1 then rows_in_raw when question = 3 then compacted_in_raw end
                as rows_in_raw,
            case when question = 1 then rows_in_ledger when question = 3 then compacted_in_ledger
                end as rows_in_ledger,
            case when question = 1 then rows_in_commits end as rows_in_commits,
            snapshot_id,
            case
                when question = 3 then case
                    when compacted > 0
                        and batch = compacted
                        and compacted_is_unknown = 0
                        and compacted_in_ledger - compacted_in_raw
                        - acknowledged_rows not in (removed, removed + removing)
                        and not (
                            not shared
                            and coalesce(compacted < refresh, false)
                            and compacted_in_ledger - compacted_in_raw > removed
                        )
                        then 'up to this batch, raw table and removed rows differ from the ledger'
                end
                when question = 2 then case
                    when batch - 1 > greatest(coalesce(batch_before, 0), first_batch - 1)
                        and batch > coalesce(case when not shared then refresh end, 0)
                        then 'the batches from this one to the next one are missing everywhere'
                end
                when snapshot_id is not null then case
                    when operation <> 'replace'
                        -- Compaction only deletes rows, and records how many.
                        and rows_in_commits + case when compacted > 0 then 0 else rows_removed end
                        > 0
                        -- Deleted rows that a full refresh has read again are not missing.
                        and (shared or rows_in_commits >= rows_removed
                        or not coalesce(committed_at < refreshed_at, false))
                        then 'a commit by another program'
                end
                when batch is null then 'rows without a batch'
                when batch < 1 then 'rows of a batch that no sync makes'
                when batch < first_batch and in_raw
                    then 'rows of a batch from before the table was created'
                when batch < first_batch then null
                when batch > head and batch > coalesce(newest_before, 0) and commits is null
                    then null
                when read_again and ledger_entries = 1 then null
                when not in_raw and not is_compacted and ledger_entries is not null
                    then 'in the ledger, not in the raw table'
                when not in_raw and not is_compacted then 'committed, not in the raw table'
                when ledger_entries is null and commits is null and batch > first_commit
                    then 'neither in the ledger nor committed'
                when ledger_entries is null and batch < head then 'not in the ledger'
                when ledger_entries > 1 then 'several times in the ledger'
                when commits > 1 then 'committed several times'
                when generation_in_raw > generation or rows_without_generation > 0
                    then 'rows of a generation that their sync did not have'
                when is_compacted and rows_in_ledger < rows_in_raw
                    then 'more rows in the raw table than in the ledger'
                when is_compacted and rows_in_ledger <> rows_in_commits
                    then 'row counts of ledger and commit differ'
                when is_compacted then null
                when rows_in_ledger <> rows_in_raw then 'row counts of ledger and raw table differ'
                when rows_in_commits <> rows_in_raw then 'row counts of commit and raw table differ'
                -- Commits before the first known commit may have expired.
                when commits is null and batch > first_commit then 'no commit of its own'
            end as problem
        from judged
        cross join (select 1 as question union all select 2 as question union all select 3
            as question) as questions
    )

    select *
    from problems
    where problem is not null
        and {{ strandline._no_acknowledgement(
        syncs.schema, "batches_complete", "batch", "snapshot_id") }}
    {%- endif -%}
    {%- if lost %}
    {{ "union all" if tables }}
    select
        table_name,
        batch,
        cast(null as bigint) as rows_in_raw,
        rows_appended as rows_in_ledger,
        cast(null as bigint) as rows_in_commits,
        cast(null as bigint) as snapshot_id,
        'in the ledger, not in the raw table' as problem
    from {{ read.after }} as rows_of_lost_tables
    where batch is not null
        and table_name in ({{ strandline._literal_list(lost | map(attribute="name")) }})
    {%- endif -%}
{%- endmacro %}


{% macro _exclude_extended(read) -%}
    {#- Returns the unproved tables except those to which the loader has only appended complete
        batches since the verdict. Their older batches are in the same files as before, and are not
        counted again, except for every 30th batch. A batch is complete if raw table, ledger and
        commit contain the same number of rows. In any doubt, the table is not excluded. -#}
    {%- set candidates = [] -%}
    {%- for table in read.unproved if table.verdict.get("recorded")
        and table.verdict.facts == strandline._facts_digest(table, table.verified_digest)
        and table.verdict.recorded // 30 == table.recorded // 30
        and table.verdict.recorded + 1 >= table.first -%}
        {%- do candidates.append(dict(table, low=table.verdict.recorded, commits=[], new={})) -%}
    {%- endfor -%}
    {%- do strandline._count_batches(candidates, read.after) if candidates -%}
    {%- set extended = [] -%}
    {%- for table in candidates -%}
        {%- set commits = strandline._lineage(table, table.verdict.snapshot) -%}
        {%- set raw = table.new.items() | selectattr("1.raw_rows") | list -%}
        {%- set head = table.low + raw | length -%}
        {%- set incomplete = [] -%}
        {%- for batch, counts in raw -%}
            {#- The newest batch may lack its ledger row, because its sync is running. -#}
            {%- if commits.batches.get(batch) != counts.raw_rows or counts.without_generation
                or (counts.entries or batch < head) and (counts.entries != 1
                or counts.ledger_rows != counts.raw_rows
                or counts.ledger_generation < counts.generation) -%}
                {%- do incomplete.append(batch) -%}
            {%- endif -%}
        {%- endfor -%}
        {%- if not incomplete and not commits.foreign and table.recorded <= head
            and commits.batches | sort == range(table.low + 1, head + 1) | list -%}
            {%- do extended.append(table.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(read.unproved | rejectattr("name", "in", extended) | list) }}
{%- endmacro %}


{% macro _facts_digest(table, ledger_digest) -%}
    {#- Returns a digest of the facts that must be unchanged for counting only new batches. -#}
    {{ return(local_md5(tojson([table.first, table.compacted, table.removed, table.removing,
        table.acknowledged_rows, table.shared, table.properties.get("strandline.table-id"),
        table.settings | string, ledger_digest]))) }}
{%- endmacro %}


{% macro _raw_facts(table) -%}
    {#- Returns facts about the batches of a raw table from its properties. -#}
    {%- set properties = table.get("properties", {}) -%}
    {%- set compacted = fromjson(properties.get("strandline.compacted", "{}")) -%}
    {%- set to = compacted.get("to", properties.get("strandline.compacted_to", 0)) | int -%}
    {%- set incidents = strandline._acknowledgements(table.settings, "Source " ~ table.name) -%}
    {{ return({
        "first": properties.get("strandline.first-batch", 1) | int,
        "compacted": to,
        "removed": compacted.get("rows", 0) | int,
        "removing": compacted.get("removing", 0) | int,
        "kept": fromjson(properties.get("strandline.newest", "{}")).get("batch"),
        "shared": strandline._sources_of(properties) | length > 0,
        "acknowledged_rows": incidents | selectattr("last") | selectattr("last", "le", to) | map(
            attribute="rows") | sum,
    }) }}
{%- endmacro %}


{% macro default___commits(tables) -%}
    {#- Returns no commits, because only Spark can read Iceberg's metadata tables. -#}
    select
        cast(null as {{ dbt.type_string() }}) as table_name,
        cast(null as bigint) as batch,
        cast(null as bigint) as snapshot_id,
        cast(null as timestamp) as committed_at,
        'append' as operation,
        cast(null as bigint) as rows_added,
        cast(null as bigint) as rows_removed
    where false
{%- endmacro %}


{% macro spark___commits(tables) -%}
    {#- Returns the unexpired commits of raw tables up to the snapshots that are read. Staged
        snapshots that were never published are excluded, because they are not ancestors of the
        current snapshot. If a batch was published on top of another commit, only `published-wap-id`
        contains its number. Rows that a delete copies to a new file are included in both rows_added
        and rows_removed. -#}
        select
            table_name,
            cast(coalesce(summary['strandline.batch'], summary['published-wap-id']) as bigint)
                as batch,
            snapshot_id,
            committed_at,
            operation,
            coalesce(cast(summary['added-records'] as bigint), 0) as rows_added,
            coalesce(cast(summary['deleted-records'] as bigint), 0)
                + coalesce(cast(summary['added-position-deletes'] as bigint), 0)
                + coalesce(cast(summary['added-equality-deletes'] as bigint), 0) as rows_removed
        from (
            select
                *,
                max(is_ancestor) over (partition by table_name, snapshot_id) as is_published,
                max(case when is_pinned then committed_at end) over (partition by table_name)
                    as pinned_at
            from (
                {%- for table in tables %}
                {%- set name = strandline._literal(table.name) %}
                select
                    {{ name }} as table_name, snapshot_id, committed_at, operation, summary,
                    0 as is_ancestor, snapshot_id = {{ table.snapshot or 0 }} as is_pinned
                from {{ table.relation }}.snapshots
                union all
                select {{ name }}, snapshot_id, null, null, null, 1, false
                from {{ table.relation }}.history
                where is_current_ancestor
                {{- "\n                union all" if not loop.last }}
                {%- endfor %}
            ) as metadata
        ) as published
        where is_published = 1
            and operation is not null
            and committed_at <= pinned_at
{%- endmacro %}
