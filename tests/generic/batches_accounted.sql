{% test batches_accounted(model) %}
    {{ config(severity="error") }}
    {%- set raw = strandline.tested_table(model, "batches_accounted") %}
    {%- if not execute %}
        select cast(null as bigint) as batch where false
    {%- else %}
    {#-
        A loader may run meanwhile, and it publishes data, then state, then ledger. So: the head of
        the data first, then the ledger, then the data again (the statement itself).
        - A batch below the head is in the ledger: its row is written before the next batch begins.
        - The head may be in flight, or await recovery by the next run: its row may be missing.
        - Whatever the ledger names is in the data, head or later: the data is read after it.
        - A batch above the head came meanwhile; the next run of this test judges it.
    #}
    {%- set head = strandline.head_batch(raw) or 0 %}
    {%- set syncs = strandline.syncs_relation(raw.schema) %}
    {%- set ledger = strandline.pinned(syncs) if load_relation(syncs) is not none else none %}
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
        from {{ raw }} as versions
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
            ledger.ledger_entries,
            commits.commits,
            case
                when data.batch is null and ledger.batch is not null then 'in the ledger, not in the raw table'
                when data.batch is null and commits.batch is not null then 'committed, not in the raw table'
                when data.batch is null then 'missing everywhere'
                when batches.batch > {{ head }} then cast(null as string)
                when ledger.batch is null and batches.batch < {{ head }} then 'not in the ledger'
                when ledger.ledger_entries > 1 then 'several times in the ledger'
                when commits.commits > 1 then 'committed several times'
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
    )

    select *
    from accounts
    where problem is not null
    {%- endif %}
{% endtest %}
