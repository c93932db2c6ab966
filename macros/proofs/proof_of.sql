{% macro proof_of(tested, tables, said, stored=none) -%}
    {#-
        What a test has to ask, and what it need not ask again: {whole, tables, note, reason, same_table}. `tables` are the raw
        tables that the verdict rests on, each {name, relation, head}; `said` is whatever else it rests on (key,
        cursor, acknowledged incidents); `stored` is the watermark of the tested table if a deduped_
        materialization built it. If the proof is not `whole`, each table has `proved_to`, the batch up to which
        it held and nothing has changed since, and the batches above `again_low` up to `again_high`, whose turn it is
        to be proved again. `note` goes into the test's SQL: record_proofs() reads it there after the run. `same_table`
        says whether the tested table is the one that was proved; `proved_as` is its Iceberg snapshot that was proved. `said` is what the note
        says.
    -#}
    {%- set proof = {"whole": true, "tables": tables, "note": "", "reason": none, "same_table": true} -%}
    {%- if not strandline.may_follow(tested) or tables | map(attribute="relation") | select("none") | list -%}
        {{ return(proof) }}
    {%- endif -%}
    {%- for table in tables -%}
        {%- set properties = strandline.properties_told(table.relation, table.get("head")) -%}
        {%- set snapshot = strandline.snapshot_in(properties) -%}
        {%- if snapshot is none -%}
            {{ return(proof) }}
        {%- endif -%}
        {%- do table.update({
            "id": properties.get("strandline.table-id") or "",
            "snapshot": snapshot,
            "first": strandline.first_batch(properties),
        }) -%}
        {%- if table.get("head") is none -%}
            {%- do table.update({"head": strandline.head_told(table)}) -%}
        {%- endif -%}
        {%- if table.get("judged") is not none and table.head is not none -%}
            {%- do table.update({"head": [table.head, table.judged] | min}) -%}
        {%- endif -%}
        {%- if table.head is none -%}
            {{ return(proof) }}
        {%- endif -%}
    {%- endfor -%}
    {%- set within = strandline.proved_again_within() -%}
    {%- set configuration = local_md5(tojson([
        strandline.proof_settings(tested), said, strandline.definition_of(stored), within or 30
    ], sort_keys=true)) -%}
    {%- set records = strandline.proved(tested) -%}
    {%- do proof.update({"reason": strandline.reason_to_prove_all(tables, configuration, records, stored)}) -%}
    {%- set proof_tables = [] -%}
    {%- for table in tables -%}
        {%- if proof.reason is none -%}
            {%- do strandline.set_floor(table, records[table.name], within) -%}
        {%- endif -%}
        {%- do proof_tables.append({
            "name": table.name,
            "id": table.id,
            "snapshot": table.snapshot,
            "batch": table.head,
            "again_step": table.get("again_step", -1),
            "again_batch": table.get("again_high", 0),
        }) -%}
    {%- endfor -%}
    {%- do proof.update({"whole": proof.reason is not none}) -%}
    {%- if stored is not none -%}
        {#- Of a raw table that the model no longer reads, a record may still be there. -#}
        {%- set proved_as = [] -%}
        {%- for table in tables if table.name in records and records[table.name].table_snapshot_id not in proved_as -%}
            {%- do proved_as.append(records[table.name].table_snapshot_id) -%}
        {%- endfor -%}
        {%- do proof.update({
            "same_table": proved_as == [stored.current],
            "proved_as": proved_as[0] if proved_as | length == 1 else none,
        }) -%}
    {%- endif -%}
    {%- do proof.update({"said": {
        "proof": model.unique_id,
        "test": model.test_metadata.name,
        "table": strandline.name_of(tested),
        "configuration": configuration,
        "snapshot": stored.current if stored is not none else none,
        "whole": proof.whole,
        "reason": proof.reason,
        "tables": proof_tables,
    }}) -%}
    {{ return(dict(proof, note=strandline.proof_note(proof.said))) }}
{%- endmacro %}


{% macro asked_whole(proof, reason) -%}
    {#-
        The same proof for a test that asks everything in the end: if it fails, so it does until it has passed, and the
        next ones ask everything, too. If it passes, all batches have had their turn.
    -#}
    {%- if proof.whole -%}
        {{ return(proof) }}
    {%- endif -%}
    {%- set tables = [] -%}
    {%- for table in proof.said.tables -%}
        {%- do tables.append(dict(table, again_step=-1, again_batch=0)) -%}
    {%- endfor -%}
    {%- set said = dict(proof.said, whole=true, reason=reason, tables=tables) -%}
    {{ return(dict(proof, whole=true, reason=reason, said=said, note=strandline.proof_note(said))) }}
{%- endmacro %}


{% macro proof_of_rows(tested, said, row_condition=none) -%}
    {#- The same for a test of a raw table's rows. `said` has the key, the cursor, the acknowledged incidents. -#}
    {%- set known = execute and tested is not string -%}
    {%- set raw = strandline.tested_relation(tested) if known else none -%}
    {%- set whole = {"whole": true, "tables": [], "note": "", "reason": none, "types": {}} -%}
    {%- if not known or row_condition or not strandline.may_follow(raw) -%}
        {{ return(whole) }}
    {%- endif -%}
    {%- set types = {} -%}
    {%- for column in strandline.columns_told(raw) -%}
        {%- do types.update({column.name | lower: column.dtype}) -%}
    {%- endfor -%}
    {%- if "_cq_batch" not in types or "_cq_row_hash" not in types -%}
        {{ return(whole) }}
    {%- endif -%}
    {%- set table = {"name": strandline.name_of(raw), "relation": raw, "judged": said.pop("judged", none)} -%}
    {%- set proof = strandline.proof_of(raw, [table], [said, types]) -%}
    {%- do proof.update({"types": types}) -%}
    {{ return(proof) }}
{%- endmacro %}


{% macro may_follow(tested) -%}
    {#-
        Whether a test's verdict is that of its rows: no row failed, or some did. A `where` may depend on the
        time, thresholds and other ways to count depend on all failing rows, and --sample hides rows.
    -#}
    {%- if not execute or strandline.compiles_only() or model is not defined or model.resource_type != "test"
        or not model.test_metadata or tested is string -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set configured = model.config -%}
    {{ return(
        strandline.proofs_setting("record", true)
        and not configured.get("where")
        and (configured.get("fail_calc") or "count(*)") | lower | replace(" ", "") == "count(*)"
        and (configured.get("warn_if") or "!= 0") | replace(" ", "") == "!=0"
        and (configured.get("error_if") or "!= 0") | replace(" ", "") == "!=0"
        and not invocation_args_dict.get("sample")
    ) }}
{%- endmacro %}


{% macro proof_settings(tested) -%}
    {#- How a test is configured, and the text of its macro, which a project may have replaced by its own. -#}
    {%- set test = model.test_metadata.name -%}
    {#- By another name: dbt's parser takes only a literal for the name of a dispatched macro. -#}
    {%- set found = adapter.dispatch -%}
    {#- `form` goes up if a check changes in a macro that the tests share: then all is proved again. -#}
    {{ return({
        "test": test,
        "arguments": model.test_metadata.kwargs,
        "limit": model.config.get("limit"),
        "macro": local_md5(found("test_" ~ test, "strandline").macro.macro_sql),
        "form": 1,
    }) }}
{%- endmacro %}


{% macro definition_of(stored) -%}
    {#- What a watermark says of a table apart from its batches: if it differs, other rows may be right. -#}
    {%- set definition = {} -%}
    {%- if stored is not none -%}
        {%- for name in ["columns", "cursor_field", "definition", "generation_floor", "materialization", "others",
            "primary_key", "raw", "raw_ids", "row_filter", "select"] -%}
            {%- do definition.update({name: stored.get(name)}) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(definition) }}
{%- endmacro %}


{% macro reason_to_prove_all(tables, configuration, records, stored) -%}
    {#- Why what was proved before cannot be relied on; none if it can. -#}
    {%- if strandline.proofs_setting("prove_all", false) -%}
        {{ return("strandline__prove_all") }}
    {%- endif -%}
    {%- if stored is not none and not stored.exact -%}
        {{ return("something else wrote to the table") }}
    {%- elif stored is not none and stored.get("lacks") -%}
        {{ return("the table lacks a column of its SELECT") }}
    {%- endif -%}
    {%- for table in tables -%}
        {%- set record = records.get(table.name) -%}
        {%- if record is none -%}
            {{ return("never proved before") }}
        {%- elif record.get("batch") is none -%}
            {{ return("it failed when it was proved whole") }}
        {%- elif record.configuration != configuration -%}
            {{ return("it is configured differently, or the table is defined differently") }}
        {%- elif record.raw_id != table.id -%}
            {{ return(table.name ~ " was dropped and reloaded") }}
        {%- elif table.head < record.batch -%}
            {{ return(table.name ~ " ends before batch " ~ record.batch) }}
        {%- endif -%}
        {%- set broken = strandline.broken_lineage(table, record) -%}
        {%- if broken is not none -%}
            {{ return(broken) }}
        {%- endif -%}
        {%- if stored is not none
            and not strandline.descends(stored.name, record.get("table_snapshot_id"), stored.current) -%}
            {{ return("the table was built again, or its Iceberg snapshots have expired") }}
        {%- endif -%}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro set_floor(table, record, within) -%}
    {#-
        Up to where a raw table is proved, and which of the batches up to there are proved again. A cycle has
        `within` steps, one a build; each takes its part of what is left, so the last one reaches the floor. If no
        number is set, a step takes no more than a limited number of rows, and the last one is repeated until all is
        proved. A table that was dropped and loaded anew does not begin with batch 1.
    -#}
    {%- set floor, builds = record.batch | int, within or 30 -%}
    {%- set step = record.again_step | int + 1 -%}
    {%- set step = step if step < builds else 0 -%}
    {%- set low = [record.again_batch | int, floor] | min if step > 0 else 0 -%}
    {%- set low = [low, [table.first - 1, floor] | min] | max -%}
    {%- set left, steps = floor - low, builds - step -%}
    {%- set share = low + (left + steps - 1) // steps -%}
    {%- set high = share if within or share <= low + 1 else strandline.limited_share(table, low, share, floor) -%}
    {%- do table.update({
        "proved_to": floor,
        "again_step": step - 1 if high < share and steps == 1 else step,
        "again_low": low,
        "again_high": high,
    }) -%}
{%- endmacro %}


{% macro limited_share(table, low, high, floor) -%}
    {#-
        Up to which of the batches above `low`, up to `high`, a build proves again: those that together have no more rows
        than twice the new ones, or than 100,000 if that is more, and of small ones no more than 1,000. So what a build
        costs follows what is new, and not how long the table's history is. At least one more than are new: so it gains on
        a history that grows. Asked once an invocation.
    -#}
    {%- set known = strandline.remembered("shares") -%}
    {%- set name = [table.name, table.snapshot, table.head, low, high, floor] | string -%}
    {%- if name not in known -%}
        {%- set rows = strandline.rows_told(table, low, high) -%}
        {%- set sums = namespace(new=0, again=0, batches=0, high=none) -%}
        {%- for batch, told in rows.items() if batch > floor and batch <= table.head -%}
            {%- set sums.new = sums.new + told -%}
        {%- endfor -%}
        {%- set least = table.head - floor + 1 -%}
        {%- for batch, told in rows.items() | sort if batch > low and batch <= high and sums.high is none -%}
            {%- set sums.again, sums.batches = sums.again + told, sums.batches + 1 -%}
            {%- if sums.batches > least and (sums.again > [100000, 2 * sums.new] | max or sums.batches > [1000, 2 * least] | max) -%}
                {%- set sums.high = batch - 1 -%}
            {%- endif -%}
        {%- endfor -%}
        {%- do known.update({name: high if sums.high is none else sums.high}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro proof_note(said) -%}
    {{ return("/* strandline proof " ~ strandline.veiled(tojson(said, sort_keys=true)) ~ " */") }}
{%- endmacro %}
