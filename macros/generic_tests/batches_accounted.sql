{% test batches_accounted(model) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_batches_accounted", "strandline")(model) }}
{% endtest %}


{% macro spark__test_batches_accounted(model) -%}
    {%- set raw = strandline.tested_table(model, "batches_accounted") if strandline.testing() else none %}
    {%- set syncs = strandline.syncs_relation(raw.schema) if raw else none %}
    {%- if raw is none %}
        select cast(null as bigint) as batch where false
    {%- elif not strandline.exists(syncs) %}
    {{ strandline.missing_ledger(syncs) }}
    {%- else %}
    {#-
        A loader may be running, and it publishes data, then state, then ledger. So this reads the
        head of the data first, then the ledger, then the data again.
        - A batch below the head is in the ledger: its row is written before the next batch begins.
        - The head may be in flight, or wait for the next run to recover it: its row may be missing.
        - Every batch in the ledger is in the data, head or later: the data is read after the ledger.
        - A batch above the head arrived in between; the next run of this test judges it.
        A compaction may be running, too. So data and commits are read as of one Iceberg snapshot, with the
        account of removed rows of that moment: both are among the table's properties. Rows that are being removed
        count either way.
    #}
    {%- set told = strandline.properties_told(raw) %}
    {%- set seen = strandline.snapshot_in(told) %}
    {%- set head = (strandline.head_told({"relation": raw, "snapshot": seen}) if seen else none) or 0 %}
    {%- set incidents = strandline.acknowledged_of(raw, "batches_accounted") %}
    {#- A batch whose ledger row is still missing has not been judged. #}
    {%- set judged = strandline.ledger_told(syncs).get(raw.identifier, 0) %}
    {%- set proof = strandline.proof_of_rows(
        model, {"known": incidents, "first": strandline.first_batch(told), "judged": judged}
    ) %}
    {%- if strandline.accounted_at_a_glance(proof, raw, syncs, head, told) %}
    {{ proof.note }}
    {{ strandline.nothing_found("cast(null as bigint) as batch") }}
    {%- else %}
    {{ strandline.asked_whole(proof, "not all batches are plainly accounted for").note }}
    {%- set ledger = strandline.pinned(syncs) %}
    {%- set properties = strandline.table_properties(raw) %}
    {%- set snapshot = strandline.snapshot_in(properties) %}
    {%- set removed = strandline.removed_rows(properties) %}
    {%- set data = raw ~ (" version as of " ~ snapshot if snapshot else "") %}
    {%- set first = strandline.first_batch(properties) %}
    {%- set shared = strandline.sharers_in(properties) | length > 0 %}
    {%- set acknowledged_rows = incidents | selectattr("last") | selectattr("last", "le", removed.to)
        | map(attribute="rows") | sum %}
    {#- Spark plans a CTE again wherever it is named, and rereads its tables. So each is named only once. #}
    with data as (
        select
            _cq_batch as batch,
            count(*) as rows_in_raw,
            max(_cq_generation) as generation_in_raw,
            count_if(_cq_generation is null) as rows_without_generation
        from {{ data }} as versions
        group by _cq_batch
    ),

    ledger as (
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

    -- commits of others and of maintenance have no batch: each gets a row of its own
    commits as (
        select
            batch,
            if(batch is null, snapshot_id, null) as snapshot_id,
            count(*) as commits,
            sum(rows_added) as rows_in_commits,
            sum(rows_removed) as rows_removed,
            max(committed_at) as committed_at,
            max(operation) as operation
        from (
            {{ strandline.commits_of(raw, snapshot) }}
        ) as published
        group by 1, 2
    ),

    known as (
        select *
        from data
        full join ledger using (batch)
        full join commits using (batch)
    ),

    surrounded as (
        select
            *,
            greatest(lag(batch) over (order by batch), {{ first - 1 }}L) as batch_before,
            coalesce(min(if(commits is null, null, batch)) over (), {{ strandline.kept_batch(properties) }}) as first_commit,
            -- the newest complete full refresh, per source if several share the table: what it read again is not lost
            max(if(read_everything, struct(batch, committed_at), null))
                over ({{ "partition by source_name" if shared }}) as refresh
        from known
    ),

    numbered as (
        select
            *,
            -- a batch number that is far too high leaves many out: name only the first ones
            explode(if(
                batch > batch_before + 1,
                concat(sequence(batch_before + 1, least(batch - 1, batch_before + 1000)), array(batch)),
                array(batch)
            )) as number
        from surrounded
    ),

    facts as (
        select
            number,
            first_commit,
            {{ "if(number = batch, refresh, null)" if shared else "refresh" }} as refresh,
            if(
                number <=> batch,
                struct(
                    rows_in_raw,
                    generation_in_raw,
                    rows_without_generation,
                    ledger_entries,
                    rows_in_ledger,
                    generation,
                    commits,
                    rows_in_commits,
                    rows_removed,
                    committed_at,
                    operation,
                    snapshot_id
                ),
                null
            ) as found
        from numbered
    ),

    joined as (
        select
            number as batch,
            first_commit,
            refresh,
            found.*,
            found.rows_in_raw is not null as in_raw,
            found.generation_in_raw > found.generation or found.rows_without_generation > 0 as wrong_generation,
            -- what a later full refresh has read again was lost, but is back
            coalesce(
                number < refresh.batch
                and coalesce(found.rows_in_raw, 0) < coalesce(found.rows_in_ledger, found.rows_in_commits, 1),
                false
            ) as read_again,
            {#- What compaction removed is accounted for as a sum, below. #}
            number <= {{ removed.to }} as compacted
        from facts
    ),

    accounts as (
        select
            *,
            case
                when snapshot_id is not null then if(
                    operation <> 'replace'
                    -- compaction only deletes, and counts what it deletes
                    and {{ "rows_in_commits > 0" if removed.to > 0 else "rows_in_commits + rows_removed > 0" }}
                    {%- if not shared %}
                    -- rows that others deleted and a full refresh has read again are no longer missing
                    and not (
                        rows_in_commits < rows_removed
                        and coalesce(committed_at < refresh.committed_at, false)
                    )
                    {%- endif %},
                    concat('a commit of others (', operation, ')'),
                    null
                )
                when batch is null then 'rows without a batch'
                when batch < {{ first }} and not in_raw then cast(null as string)
                when batch < 1 then 'rows of a batch that no sync makes'
                when batch < {{ first }} then 'rows of a batch from before the table was made'
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
                -- older commits may have expired, and their summaries with them
                when commits is null and batch > first_commit then 'no commit of its own'
            end as problem
        from joined
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
            snapshot_id,
            problem
        from accounts
        where problem is not null
        {%- if removed.to > 0 %}
        union all
        select
            {{ removed.to }},
            rows_in_raw,
            rows_in_ledger,
            null,
            {{ removed.rows }},
            null,
            null,
            null,
            'of the batches up to this one, raw table and removed rows differ from the ledger'
        from (
            select
                sum(coalesce(rows_in_raw, 0)) as rows_in_raw,
                sum(rows_in_ledger) as rows_in_ledger,
                count_if(rows_in_ledger is null) as unknown,
                {{ "false" if shared else "bool_and(batch < refresh.batch)" }} as read_again
            from accounts
            where compacted
                and batch >= {{ first }}
        ) as compacted
        -- a rebuilt ledger does not know how many rows a compacted batch had
        where unknown = 0
            and rows_in_ledger - rows_in_raw - {{ acknowledged_rows }} not in (
                {{- removed.rows }}, {{ removed.rows + removed.removing -}}
            )
            and not (
                coalesce(read_again, false)
                and rows_in_ledger - rows_in_raw > {{ removed.rows }}
            )
        {%- endif %}
    )

    select
        {{ strandline.text_literal(raw.identifier) }} as table_name,
        *
    from problems
    where {{ strandline.not_acknowledged(incidents, "batch", "snapshot_id") }}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
