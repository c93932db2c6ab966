{% macro accounted_at_a_glance(proof, raw, syncs, head, properties) -%}
    {#-
        Whether one look at the ledger, and at raw's rows in what a proof asks, shows that all batches are accounted
        for: the ledger has each batch once, up to the head; each asked one has as many rows in raw as in the ledger
        and in its commit, and was committed once. So the proof relies for earlier batches on their commits, of which
        none was added since. Otherwise, or if rows were compacted away or a test has to name them, the test asks for
        itself, and its own rows decide.
    -#}
    {%- if proof.whole or not strandline.may_glance(proof) or strandline.removed_rows(properties).to > 0 -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set table = proof.tables[0] -%}
    {%- set asked = "(batch > " ~ table.proved_to ~ " or batch > " ~ table.again_low ~ " and batch <= " ~ table.again_high ~ ")" -%}
    {%- set first = strandline.first_batch(properties) -%}
    {%- set accounts_sql -%}
        select
            count(*) as batches,
            count_if(odd),
            to_json(collect_list(told))
        from (
            select
                not (
                    coalesce(batch between {{ first }} and {{ head }} and sum(entries) = 1, false)
                    and (
                        not {{ asked }}
                        or coalesce(
                            sum(rows_in_raw) = sum(rows_in_ledger)
                            and max(generation_in_raw) <= max(generation)
                            and sum(rows_without_generation) = 0,
                            false
                        )
                    )
                ) as odd,
                if({{ asked }}, struct(batch, sum(rows_in_raw) as rows), null) as told
            from (
                select
                    _cq_batch as batch,
                    count(*) as rows_in_raw,
                    max(_cq_generation) as generation_in_raw,
                    count_if(_cq_generation is null) as rows_without_generation,
                    0 as entries,
                    null as rows_in_ledger,
                    null as generation
                from {{ raw }} version as of {{ table.snapshot }} as versions
                where {{ strandline.asked(proof) }}
                group by _cq_batch
                union all
                select batch, null, null, null, 1, rows_appended, generation
                from {{ syncs }} as syncs
                where table_name = {{ strandline.text_literal(raw.identifier) }}
                    and batch >= {{ first }}
            ) as told
            group by batch
        ) as accounts
    {%- endset -%}
    {%- set batches, odd, told = run_query(accounts_sql).rows[0].values() -%}
    {%- set found = {} -%}
    {%- for one in fromjson(told) -%}
        {%- do found.update({one.batch: [one.rows]}) -%}
    {%- endfor -%}
    {#- Commits of earlier batches may have expired, and those of later ones are all there. -#}
    {%- set committed = strandline.rows_committed(table) -%}
    {%- set oldest = [committed | min, table.proved_to + 1] | min if committed else table.proved_to + 1 -%}
    {%- set plain = [batches | int == head - first + 1, odd | int == 0] -%}
    {%- for batch in found if batch >= oldest and committed.get(batch) != found[batch] -%}
        {%- do plain.append(false) -%}
    {%- endfor -%}
    {%- for batch in committed if batch > table.proved_to and batch not in found -%}
        {%- do plain.append(false) -%}
    {%- endfor -%}
    {{ return(false not in plain) }}
{%- endmacro %}


{% macro rows_committed(table) -%}
    {#-
        How many rows each commit of a batch has added to a raw table, as of its snapshot: {batch: [rows]}. Commits that
        have expired are missing.
    -#}
    {%- set commits = strandline.commits_told(table.relation, table.snapshot) -%}
    {%- set at = namespace(snapshot=table.snapshot) -%}
    {%- set committed = {} -%}
    {%- for step in commits if at.snapshot in commits -%}
        {%- set commit = commits[at.snapshot] -%}
        {%- set batch = commit.batch or commit.published or "" -%}
        {%- if modules.re.match("^[0-9]+$", batch) -%}
            {%- do committed.setdefault(batch | int, []).append(commit.rows | int) -%}
        {%- endif -%}
        {%- set at.snapshot = commit.parent or "" -%}
    {%- endfor -%}
    {{ return(committed) }}
{%- endmacro %}
