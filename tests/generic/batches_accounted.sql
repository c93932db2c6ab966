{% test batches_accounted(model) %}
    {{ config(severity="error") }}
    {%- set raw = strandline.tested_table(model, "batches_accounted") %}
    {%- if not execute %}
        select cast(null as bigint) as batch where false
    {%- else %}
    {#-
        A loader may run meanwhile, and it publishes data, then state, then ledger. So: the head of
        the data first, then the ledger, then the data again.
        - A batch below the head is in the ledger: its row is written before the next batch begins.
        - The head may be in flight, or await recovery by the next run: its row may be missing.
        - Whatever the ledger names is in the data, head or later: the data is read after it.
        - A batch above the head came meanwhile; the next run of this test judges it.
        A compaction may run, too: the data is read as of one moment, at which the account of what
        was removed is the same before and after. While rows go, they count as removed or not.
    #}
    {%- set head = strandline.head_batch(raw) or 0 %}
    {%- set syncs = strandline.syncs_relation(raw.schema) %}
    {%- set ledger = strandline.pinned(syncs) if load_relation(syncs) is not none else none %}
    {%- set at = namespace(removed=strandline.removed_rows(raw), data=none) %}
    {%- for _ in range(5) if at.data is none %}
        {%- set data = strandline.pinned(raw) %}
        {%- set removed = strandline.removed_rows(raw) %}
        {%- if removed == at.removed or loop.last %}
            {%- set at.data = data %}
        {%- endif %}
        {%- set at.removed = removed %}
    {%- endfor %}
    with ledger as (
        {%- if ledger is none %}
        select
            cast(null as bigint) as batch,
            cast(null as bigint) as ledger_entries,
            cast(null as bigint) as rows_in_ledger
        where false
        {%- else %}
        select
            batch,
            count(*) as ledger_entries,
            max(rows_appended) as rows_in_ledger
        from {{ ledger }} as syncs
        where table_name = {{ strandline.text_literal(raw.identifier) }}
            and batch is not null
        group by batch
        {%- endif %}
    ),

    data as (
        select
            _cq_batch as batch,
            count(*) as rows_in_raw
        from {{ at.data }} as versions
        group by _cq_batch
    ),

    -- staged snapshots that were never published are no ancestors of the table
    published as (
        select snapshots.*
        from {{ raw }}.snapshots as snapshots
        left semi join {{ raw }}.history as history
            on snapshots.snapshot_id = history.snapshot_id
            and history.is_current_ancestor
    ),

    -- a cherry-picked commit carries the batch as the id it was published by
    commits as (
        select
            cast(coalesce(summary['strandline.batch'], summary['published-wap-id']) as bigint) as batch,
            count(*) as commits,
            sum(cast(summary['added-records'] as bigint)) as rows_in_commits
        from published
        where coalesce(summary['strandline.batch'], summary['published-wap-id']) is not null
        group by 1
    ),

    bounds as (
        select
            greatest({{ head }}, (select coalesce(max(batch), 0) from ledger)) as last_batch,
            (select min(batch) from commits) as first_commit
    ),

    batches as (
        select explode(sequence(1L, last_batch)) as batch
        from bounds
        where last_batch >= 1
    ),

    accounts as (
        select
            {{ strandline.text_literal(raw.identifier) }} as table_name,
            batches.batch,
            data.rows_in_raw,
            ledger.rows_in_ledger,
            commits.rows_in_commits,
            cast(null as bigint) as rows_compacted,
            ledger.ledger_entries,
            commits.commits,
            case
                {#- What compaction removed is accounted for in sum, below. #}
                {%- set compacted = "batches.batch <= " ~ at.removed.to %}
                when coalesce(data.batch, ledger.batch, commits.batch) is null then 'missing everywhere'
                when data.batch is null and not {{ compacted }} and ledger.batch is not null
                    then 'in the ledger, not in the raw table'
                when data.batch is null and not {{ compacted }} then 'committed, not in the raw table'
                when batches.batch > {{ head }} then cast(null as string)
                when ledger.batch is null and batches.batch < {{ head }} then 'not in the ledger'
                when ledger.ledger_entries > 1 then 'several times in the ledger'
                when commits.commits > 1 then 'committed several times'
                when {{ compacted }} and ledger.rows_in_ledger < data.rows_in_raw
                    then 'more rows in the raw table than in the ledger'
                when {{ compacted }} and ledger.rows_in_ledger <> commits.rows_in_commits
                    then 'ledger and commit differ in rows'
                when {{ compacted }} then cast(null as string)
                when ledger.rows_in_ledger <> data.rows_in_raw then 'ledger and raw table differ in rows'
                when commits.rows_in_commits <> data.rows_in_raw then 'commit and raw table differ in rows'
                -- older commits may have been expired, and their summaries with them
                when commits.batch is null and batches.batch > bounds.first_commit then 'no commit of its own'
            end as problem
        from batches
        cross join bounds
        left join data on batches.batch = data.batch
        left join ledger on batches.batch = ledger.batch
        left join commits on batches.batch = commits.batch
    ),

    -- a ledger made anew does not know how many rows a compacted batch had
    compacted as (
        select
            sum(coalesce(rows_in_raw, 0)) as rows_in_raw,
            sum(rows_in_ledger) as rows_in_ledger,
            count_if(rows_in_ledger is null) as unknown
        from accounts
        where batch <= {{ at.removed.to }}
    )

    select *
    from accounts
    where problem is not null
    union all
    select
        {{ strandline.text_literal(raw.identifier) }},
        {{ at.removed.to }},
        rows_in_raw,
        rows_in_ledger,
        null,
        {{ at.removed.rows }},
        null,
        null,
        'of the batches up to this one, raw table and removed rows differ from the ledger'
    from compacted
    where unknown = 0
        and rows_in_ledger - rows_in_raw not in (
            {{- at.removed.rows }}, {{ at.removed.rows + at.removed.removing -}}
        )
    {%- endif %}
{% endtest %}
