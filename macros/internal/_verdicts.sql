{#-
    A verdict is a stored result of a check. A build of cq_sync_log or cq_state_current checks the
    raw tables that have changed since the last build. In the model's property `strandline.proved`,
    it stores the tables that passed, as {table: fingerprint}. The tests batches_complete and
    state_consistent check each raw table without a verdict for its current fingerprint. Therefore
    they report a failure until it is corrected, and need only one statement for each unchanged
    table.
-#}


{% macro _records(relation, name) -%}
    {#-
        Returns the ledger or the state table. It is either the tested source or the source that the
        tested model of this package reads.
    -#}
    {%- do strandline._exists(relation) if relation is string -%}
    {%- set node = strandline._tested_node(relation) -%}
    {%- if node.get("resource_type") != "model" -%}
        {{ return(relation) }}
    {%- endif -%}
    {{ return(strandline._own_relation(name)) }}
{%- endmacro %}


{% macro _read_fingerprints(records, tables, table_name) -%}
    {#-
        Sets `fingerprint` and `snapshot_before` of each raw table. Returns the ledger or state
        table, pinned to a snapshot after the raw tables were read. `table_name` is SQL for the name
        of the raw table in a row of the ledger or state table.
    -#}
    {%- if target.type != "spark" -%}
        {{ return(records) }}
    {%- endif -%}
    {%- for table in tables -%}
        {%- do table.update({"properties": strandline._properties(table.relation)}) -%}
        {%- do table.update({"snapshot_before": strandline._snapshot(table.properties)}) -%}
    {%- endfor -%}
    {%- set pinned = strandline._pinned(records) -%}
    {%- set digests_sql -%}
        select {{ table_name }}, count(*), cast(sum(cast(digest as decimal(20, 0))) as string)
        from (select *, xxhash64(*) as digest from {{ pinned }} as rows_of_records) as digests
        group by 1
    {%- endset -%}
    {%- set digests = {} -%}
    {%- for row in run_query(digests_sql) -%}
        {%- do digests.update({row[0]: [row[1] | int, row[2]]}) -%}
    {%- endfor -%}
    {%- for table in tables -%}
        {%- do table.update({"fingerprint": local_md5(tojson([
            table.properties, digests.get(table.name), table.settings | string
        ], sort_keys=true))}) -%}
    {%- endfor -%}
    {{ return(pinned) }}
{%- endmacro %}


{% macro _pinned(relation) -%}
    {#- Pins the table to its current snapshot, so that all later statements read the same rows. -#}
    {%- if target.type != "spark" -%}
        {{ return(relation) }}
    {%- endif -%}
    {%- set snapshot = strandline._snapshot(strandline._properties(relation)) -%}
    {{ return(relation ~ (" version as of " ~ snapshot if snapshot else "")) }}
{%- endmacro %}


{% macro _unproved_tables(tables, model_name) -%}
    {#-
        Returns the raw tables without a current verdict in the properties of a model of this
        package.
    -#}
    {%- set proved = {} -%}
    {%- set node = graph.nodes.get("model.strandline." ~ model_name) -%}
    {%- if node and target.type == "spark" and not strandline._prove_all() -%}
        {%- set relation = strandline._node_relation(node) -%}
        {%- if strandline._exists(relation) -%}
            {%- set proved = fromjson(strandline._properties(relation).get(
                "strandline.proved", "{}")) -%}
        {%- endif -%}
    {%- endif -%}
    {%- set unproved = [] -%}
    {%- for table in tables if not proved or proved.get(table.name) != table.fingerprint -%}
        {%- do unproved.append(table) -%}
    {%- endfor -%}
    {{ return(unproved) }}
{%- endmacro %}


{% macro _prove_all() -%}
    {{ return(var("strandline__prove_all", false) | string | lower == "true") }}
{%- endmacro %}


{% macro _store_verdicts(name) -%}
    {#-
        Returns the post-hook of cq_sync_log and cq_state_current. It is an ALTER that stores the
        verdicts in the built table, or "" if there is nothing to check.
    -#}
    {%- if not execute or target.type != "spark" or flags.EMPTY -%}
        {{ return("") }}
    {%- endif -%}
    {%- set records = strandline._own_relation(name) -%}
    {%- if not strandline._exists(records) -%}
        {{ return("") }}
    {%- endif -%}
    {%- set judge = strandline._judge_batches if name == "_cq_syncs"
        else strandline._judge_states -%}
    {%- set judged = judge(records, model.name) -%}
    {%- set failing = [] -%}
    {%- if judged.unproved -%}
        {%- for row in run_query("select distinct table_name from (\n" ~ judged.sql
            ~ "\n) as failures") -%}
            {%- do failing.append(row[0]) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- set pending = judged.unproved | map(attribute="name") | list -%}
    {%- set proved = {} -%}
    {%- for table in judged.tables
        if table.name not in pending
        or table.name not in failing and table.snapshot == table.snapshot_before -%}
        {%- do proved.update({table.name: table.fingerprint}) -%}
    {%- endfor -%}
    {%- set verdicts = tojson(proved, sort_keys=true) -%}
    {{ return(
        "alter table " ~ this ~ " set tblproperties ('strandline.proved' = "
        ~ strandline._literal(strandline._encode(verdicts)) ~ ")"
    ) }}
{%- endmacro %}
