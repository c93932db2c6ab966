{% test batches_accounted(model) %}
    {{ config(severity="error") }}
    {%- set raw = strandline.tested_table(model, "batches_accounted") if strandline.testing() else none %}
    {%- set syncs = strandline.syncs_relation(raw.schema) if raw else none %}
    {%- if raw is none %}
        select cast(null as bigint) as batch where false
    {%- elif not strandline.exists(syncs) %}
    {{ strandline.missing_ledger(syncs) }}
    {%- else %}
    {#-
        A loader may run meanwhile, and it publishes data, then state, then ledger. So: the head of
        the data first, then the ledger, then the data again.
        - A batch below the head is in the ledger: its row is written before the next batch begins.
        - The head may be in flight, or await recovery by the next run: its row may be missing.
        - Whatever the ledger names is in the data, head or later: the data is read after it.
        - A batch above the head came meanwhile; the next run of this test judges it.
        A compaction may run, too: the data is read as of one moment, at which the account of what
        was removed is the same before and after, and so are the commits. While rows go, they count as removed or not.
    #}
    {%- set head = strandline.head_batch(raw) or 0 %}
    {%- set ledger = strandline.pinned(syncs) %}
    {%- set at = namespace(removed=strandline.removed_rows(raw), settled=false, snapshot=none) %}
    {%- for _ in range(5) if not at.settled %}
        {%- set at.snapshot = strandline.current_snapshot(raw) %}
        {%- set removed = strandline.removed_rows(raw) %}
        {%- set at.settled = removed == at.removed %}
        {%- set at.removed = removed %}
    {%- endfor %}
    {%- set data = raw ~ (" version as of " ~ at.snapshot if at.snapshot else "") %}
    {%- set first = strandline.first_batch(raw) %}
    {%- set shared = strandline.sharers(raw) | length > 0 %}
    {%- set incidents = strandline.acknowledged_of(raw, "batches_accounted") %}
    {%- set acknowledged_rows = incidents | selectattr("last") | selectattr("last", "le", at.removed.to)
        | map(attribute="rows") | sum %}
    with ledger as (
        select
            batch,
            count(*) as ledger_entries,
            max(rows_appended) as rows_in_ledger,
            max(generation) as generation,
            max(source_name) as source_name,
            bool_or(mode = 'full_refresh') as read_everything
        from {{ ledger }} as syncs
        where table_name = {{ strandline.text_literal(raw.identifier) }}
            and batch >= {{ first }}
        group by batch
    ),

    -- the newest complete full refresh, of each source that shares the table: what it read again is not lost
    refreshes as (
        select
            {{ "source_name" if shared else "cast(null as string)" }} as source_name,
            max(batch) as batch
        from ledger
        where read_everything
        group by 1
    ),

    data as (
        select
            _cq_batch as batch,
            count(*) as rows_in_raw,
            max(_cq_generation) as generation,
            count_if(_cq_generation is null) as rows_without_generation
        from {{ data }} as versions
        group by _cq_batch
    ),

    published as (
        {{ strandline.commits_of(raw, at.snapshot) }}
    ),

    commits as (
        select
            batch,
            count(*) as commits,
            sum(rows_added) as rows_in_commits
        from published
        where batch is not null
        group by batch
    ),

    refreshed as (
        select max(published.committed_at) as committed_at
        from published
        inner join refreshes on published.batch = refreshes.batch
    ),

    foreign_commits as (
        select published.*
        from published
        cross join refreshed
        where published.batch is null
            and published.operation <> 'replace'
            -- compaction only ever deletes, and counts what it does
            and {{ "published.rows_added > 0" if at.removed.to > 0 else "published.rows_added + published.rows_removed > 0" }}
            {%- if not shared %}
            -- what others deleted, and a full refresh has read again, is no longer missing
            and not (
                published.rows_added < published.rows_removed
                and coalesce(published.committed_at < refreshed.committed_at, false)
            )
            {%- endif %}
    ),

    bounds as (
        select coalesce(min(batch), {{ strandline.kept_batch(raw) }}) as first_commit
        from commits
    ),

    numbers as (
        select
            batch,
            lag(batch, 1, {{ first - 1 }}L) over (order by batch) as batch_before
        from (
            select batch from data where batch >= {{ first }}
            union
            select batch from ledger
            union
            select batch from commits where batch >= {{ first }}
        ) as known
    ),

    batches as (
        select batch
        from numbers
        union all
        -- a number that is far too high leaves out many: the first of them are named
        select explode(sequence(batch_before + 1, least(batch - 1, batch_before + 1000)))
        from numbers
        where batch > batch_before + 1
    ),

    joined as (
        select
            batches.batch,
            data.batch is not null as in_raw,
            data.rows_in_raw,
            ledger.rows_in_ledger,
            commits.rows_in_commits,
            ledger.ledger_entries,
            commits.commits,
            data.generation > ledger.generation or data.rows_without_generation > 0 as wrong_generation,
            -- what a later full refresh has read again was lost, and is there
            coalesce(
                batches.batch < refreshes.batch
                and coalesce(data.rows_in_raw, 0) < coalesce(ledger.rows_in_ledger, commits.rows_in_commits, 1),
                false
            ) as read_again,
            {#- What compaction removed is accounted for in sum, below. #}
            batches.batch <= {{ at.removed.to }} as compacted,
            bounds.first_commit
        from batches
        cross join bounds
        left join data on batches.batch = data.batch
        left join ledger on batches.batch = ledger.batch
        left join commits on batches.batch = commits.batch
        left join refreshes
            on {{ "ledger.source_name = refreshes.source_name" if shared else "true" }}
    ),

    accounts as (
        select
            *,
            case
                when read_again and ledger_entries = 1 then cast(null as string)
                when not in_raw and ledger_entries is null and commits is null
                    then if(read_again, cast(null as string), 'missing everywhere')
                when not in_raw and not compacted and ledger_entries is not null
                    then 'in the ledger, not in the raw table'
                when not in_raw and not compacted then 'committed, not in the raw table'
                when ledger_entries is null and commits is null and batch > first_commit
                    then 'neither in the ledger nor committed'
                when batch > {{ head }} then cast(null as string)
                when ledger_entries is null and batch < {{ head }} then 'not in the ledger'
                when ledger_entries > 1 then 'several times in the ledger'
                when commits > 1 then 'committed several times'
                when wrong_generation then 'rows of a generation that their sync did not have'
                when compacted and rows_in_ledger < rows_in_raw
                    then 'more rows in the raw table than in the ledger'
                when compacted and rows_in_ledger <> rows_in_commits
                    then 'ledger and commit differ in rows'
                when compacted then cast(null as string)
                when rows_in_ledger <> rows_in_raw then 'ledger and raw table differ in rows'
                when rows_in_commits <> rows_in_raw then 'commit and raw table differ in rows'
                -- older commits may have been expired, and their summaries with them
                when commits is null and batch > first_commit then 'no commit of its own'
            end as problem
        from joined
    ),

    -- a ledger made anew does not know how many rows a compacted batch had
    compacted as (
        select
            sum(coalesce(rows_in_raw, 0)) as rows_in_raw,
            sum(rows_in_ledger) as rows_in_ledger,
            count_if(rows_in_ledger is null) as unknown,
            {{ "false" if shared else "bool_and(batch < newest_refresh)" }} as read_again
        from accounts
        cross join (select max(batch) as newest_refresh from refreshes) as refreshes
        where batch <= {{ at.removed.to }}
    ),

    problems as (
        select
            batch,
            rows_in_raw,
            rows_in_ledger,
            rows_in_commits,
            cast(null as bigint) as rows_compacted,
            ledger_entries,
            commits,
            cast(null as bigint) as snapshot_id,
            problem
        from accounts
        where problem is not null
        union all
        select
            batch,
            rows_in_raw,
            null,
            null,
            null,
            null,
            null,
            null,
            case
                when batch is null then 'rows without a batch'
                when batch < 1 then 'rows of a batch that no sync makes'
                else 'rows of a batch from before the table was made'
            end
        from data
        where batch is null
            or batch < {{ first }}
        union all
        select
            null,
            null,
            null,
            rows_added,
            null,
            null,
            1,
            snapshot_id,
            concat('a commit of others (', operation, ')')
        from foreign_commits
        union all
        select
            {{ at.removed.to }},
            rows_in_raw,
            rows_in_ledger,
            null,
            {{ at.removed.rows }},
            null,
            null,
            null,
            'of the batches up to this one, raw table and removed rows differ from the ledger'
        from compacted
        where unknown = 0
            and rows_in_ledger - rows_in_raw - {{ acknowledged_rows }} not in (
                {{- at.removed.rows }}, {{ at.removed.rows + at.removed.removing -}}
            )
            and not (
                coalesce(read_again, false)
                and rows_in_ledger - rows_in_raw > {{ at.removed.rows }}
            )
    )

    select
        {{ strandline.text_literal(raw.identifier) }} as table_name,
        *
    from problems
    where {{ strandline.not_acknowledged(incidents, "batch", "snapshot_id") }}
    {%- endif %}
{% endtest %}
