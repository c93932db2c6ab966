{#- A build of cq_sync_log or cq_state_current checks the raw tables that have changed since the
    last build. It stores the tables that passed in the model's property `strandline.proved`, as
    {table: fingerprint}. The tests batches_complete and state_consistent check the others. -#}


{% macro _records(relation, name) -%}
    {#- Returns the ledger or the state table. It is either the tested source or the source that the
        tested model of this package reads. -#}
    {%- do strandline._exists(relation) if relation is string -%}
    {%- set node = strandline._tested_node(relation) -%}
    {%- if node.get("resource_type") != "model" -%}
        {{ return(relation) }}
    {%- endif -%}
    {{ return(strandline._own_relation(name)) }}
{%- endmacro %}


{% macro _read_fingerprints(records, tables, table_name, model_name) -%}
    {#- Returns {tables, unproved, records}. `tables` are the raw tables, and `unproved` are the raw
        tables without a current verdict in the properties of a model of this package. `records` is
        the ledger or state table, pinned to a snapshot after the raw tables were read. Sets
        `fingerprint` and `snapshot_before` of each raw table. `table_name` is SQL for the name of
        the raw table in a row of the ledger or state table. If this dbt run has built the tested
        model, the tables that passed are not read again. -#}
    {%- if target.type != "spark" -%}
        {{ return({"tables": tables, "unproved": tables, "records": records}) }}
    {%- endif -%}
    {%- set node = graph.nodes.get("model.strandline." ~ model_name) -%}
    {%- set model_table = strandline._node_relation(node) if node else none -%}
    {%- set stored = strandline._properties(model_table) if node
        and strandline._exists(model_table) else {} -%}
    {%- set proved = fromjson(stored.get("strandline.proved", "{}"))
        if not strandline._prove_all() else {} -%}
    {%- if stored.get("strandline.build") == invocation_id
        and strandline._tested_node(none).get("unique_id") == node.unique_id -%}
        {%- set tables = tables | rejectattr("name", "in", proved) | list -%}
    {%- endif -%}
    {%- set snapshot_before = strandline._snapshot(strandline._properties(records)) -%}
    {%- for table in tables -%}
        {%- do table.update({"properties": strandline._properties(table.relation)}) -%}
        {%- do table.update({"snapshot_before": strandline._snapshot(table.properties)}) -%}
    {%- endfor -%}
    {%- set snapshot = strandline._snapshot(strandline._properties(records)) -%}
    {%- set pinned = records ~ (" version as of " ~ snapshot if snapshot else "") -%}
    {%- set digests_sql -%}
        select {{ table_name }}, count(*), cast(sum(cast(digest as decimal(20, 0))) as string)
        from (select *, xxhash64(*) as digest from {{ pinned }} as rows_of_records) as digests
        group by 1
    {%- endset -%}
    {%- set digests = {} -%}
    {%- for row in run_query(digests_sql) -%}
        {%- do digests.update({row[0]: [row[1] | int, row[2]]}) -%}
    {%- endfor -%}
    {%- set unproved = [] -%}
    {%- for table in tables -%}
        {%- do table.update({
            "is_settled": snapshot == snapshot_before,
            "fingerprint": local_md5(tojson([
                table.properties, digests.get(table.name), table.settings | string
            ], sort_keys=true)),
        }) -%}
        {%- do unproved.append(table) if proved.get(table.name) != table.fingerprint -%}
    {%- endfor -%}
    {{ return({"tables": tables, "unproved": unproved, "records": pinned}) }}
{%- endmacro %}


{% macro _properties_after(table) -%}
    {#- Returns the properties of a raw table after the ledger or state table was pinned. If that
        table has not changed while the raw tables were read, the first reading is sufficient. -#}
    {{ return(table.properties if table.is_settled else strandline._properties(table.relation)) }}
{%- endmacro %}


{% macro _prove_all() -%}
    {{ return(var("strandline__prove_all", false) | string | lower == "true") }}
{%- endmacro %}


{% macro _store_verdicts(name) -%}
    {#- Returns the post-hook of cq_sync_log and cq_state_current. It is an ALTER that stores the
        verdicts in the built table, or "" if there is nothing to check. -#}
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
        ~ strandline._literal(strandline._encode(verdicts)) ~ ", 'strandline.build' = "
        ~ strandline._literal(invocation_id) ~ ")"
    ) }}
{%- endmacro %}
