{% macro record_proofs(results) -%}
    {#-
        The package's on-run-end hook: what the tests of this run have proved, as one INSERT; nothing if no test
        took note of anything. A test that held is proved up to the batch that it names. One that failed keeps
        what was proved before it, so that the next run asks the same again; but if it failed on everything, what
        was proved before no longer counts either. A test that broke off proves nothing. If another build has
        taken note of a failure on everything since this one began, what held here proves nothing: it relied on
        what was proved before.
    -#}
    {%- if not execute -%}
        {{ return("") }}
    {%- endif -%}
    {%- set rows = [] -%}
    {%- for result in results if result.node.resource_type == "test" and result.status in ("pass", "warn", "fail") -%}
        {%- set found = modules.re.search("/\\* strandline proof (hex:[0-9a-f]+) \\*/", result.node.compiled_code or "") -%}
        {%- set said = fromjson(strandline.unveiled(found.group(1))) if found is not none else {} -%}
        {%- set held = result.status == "pass" and result.failures == 0 -%}
        {%- if said and (held or said.whole) -%}
            {%- for table in said.tables -%}
                {%- do rows.append(strandline.proof_row(said, table, held)) -%}
            {%- endfor -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if not rows -%}
        {{ return("") }}
    {%- endif -%}
    {%- set proofs = strandline.proofs_relation() -%}
    {%- if strandline.exists(proofs) -%}
        {%- do strandline.keep_proofs_small(proofs) -%}
    {%- else -%}
        {%- do strandline.make_proofs_table(proofs) -%}
    {%- endif -%}
    insert into {{ proofs }}
    select /*+ coalesce(1) */
        said.*,
        {{ strandline.text_literal(invocation_id) }},
        current_timestamp()
    from values
        {{ rows | join(",\n        ") }}
        as said(
            proof, test, table_name, table_snapshot_id, configuration, raw_table, raw_id, raw_snapshot_id, batch,
            again_step, again_batch, reason
        )
    left anti join {{ proofs }} as failed
        on said.batch is not null
        and failed.batch is null
        and failed.proved_at >= timestamp '{{ run_started_at.strftime("%Y-%m-%d %H:%M:%S.%f") }}+00:00'
        and failed.proof = said.proof
        and failed.table_name = said.table_name
        and failed.raw_table = said.raw_table
{%- endmacro %}


{% macro proof_row(said, table, held) -%}
    {#- One row for the table of proofs, without when and by which run. -#}
    {{ return("(" ~ [
        strandline.text_literal(said.proof),
        strandline.text_literal(said.test),
        strandline.text_literal(said.table),
        "cast(" ~ (said.snapshot or "null") ~ " as bigint)",
        strandline.text_literal(said.configuration),
        strandline.text_literal(table.name),
        strandline.text_literal(table.id),
        "cast(" ~ table.snapshot ~ " as bigint)",
        "cast(" ~ (table.batch if held else "null") ~ " as bigint)",
        "cast(" ~ table.again_step ~ " as int)",
        "cast(" ~ table.again_batch ~ " as bigint)",
        strandline.text_literal(said.reason) if said.reason else "cast(null as string)",
    ] | join(", ") ~ ")") }}
{%- endmacro %}
