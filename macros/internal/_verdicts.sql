{#- A build of cq_sync_log or cq_state_current checks the raw tables that have changed since the
    last build. It stores the tables that passed in the model's property `strandline.verdicts`, as
    {table: verdict}. The tests batches_complete and state_consistent check the others. -#}


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
    {#- Returns {tables, unproved, before, after}. `tables` are the raw tables, each with the
        `properties` and the `snapshot` that the test reads. `unproved` are the raw tables without a
        current verdict in the properties of a model of this package. A loader may be running, so
        the ledger or state table is pinned before and after the raw tables: `before` contains only
        what the raw tables must contain as well, and `after` describes everything in them but their
        newest batch. `table_name` is SQL for the raw table's name in a row of the ledger or state
        table. If this dbt run has built the tested model, tables that passed are not read again.
        For the ledger, each table also has its last `verdict`, `recorded` (the newest batch in
        `before`), and the digests of all its ledger rows and of those that the verdict covers. -#}
    {%- if target.type != "spark" -%}
        {{ return({"tables": tables, "unproved": tables, "before": records, "after": records}) }}
    {%- endif -%}
    {%- set node = graph.nodes.get("model.strandline." ~ model_name) -%}
    {%- set model_table = strandline._node_relation(node) if node else none -%}
    {%- set stored = strandline._properties(model_table) if node
        and strandline._exists(model_table) else {} -%}
    {%- set proved = fromjson(stored.get("strandline.verdicts", "{}"))
        if not strandline._prove_all() else {} -%}
    {%- if stored.get("strandline.build") == invocation_id
        and strandline._tested_node(none).get("unique_id") == node.unique_id -%}
        {%- set tables = tables | rejectattr("name", "in", proved) | list -%}
    {%- endif -%}
    {%- set before = strandline._pinned(
        records, strandline._snapshot(strandline._properties(records))) -%}
    {%- for table in tables -%}
        {%- set properties = strandline._properties(table.relation) -%}
        {%- do table.update({"properties": properties,
            "snapshot": strandline._snapshot(properties)}) -%}
    {%- endfor -%}
    {%- set after = strandline._pinned(
        records, strandline._snapshot(strandline._properties(records))) -%}
    {#- The newest batch in the ledger that each verdict covers. -#}
    {%- set recorded = [] -%}
    {%- for name, verdict in proved.items() if verdict.recorded -%}
        {%- do recorded.append([name, verdict.recorded]) -%}
    {%- endfor -%}
    {%- set digests_sql -%}
        select
            {{ table_name }},
            cast(sum(cast(digest as decimal(20, 0))) as string)
            {%- if model_name == "cq_sync_log" %},
            cast(sum(case when batch <= recorded then cast(digest as decimal(20, 0)) end)
                as string),
            max(batch)
            {%- endif %}
        from (select *, xxhash64(*) as digest from {{ before }} as rows_of_records) as digests
        {%- if model_name == "cq_sync_log" %}
        left join (
            {{ strandline._literal_rows({"verified_table": "string", "recorded": "bigint"},
                recorded) }}
        ) as verdicts
            on digests.table_name = verdicts.verified_table
        {%- endif %}
        group by 1
    {%- endset -%}
    {%- set digests = {} -%}
    {%- for row in run_query(digests_sql) -%}
        {%- do digests.update({row[0]: row}) -%}
    {%- endfor -%}
    {%- set unproved = [] -%}
    {%- for table in tables -%}
        {%- set row = digests.get(table.name, [none, none, none, none]) -%}
        {%- do table.update({"verdict": proved.get(table.name, {}), "digest": row[1],
            "fingerprint": local_md5(tojson([table.properties, row[1], table.settings | string],
            sort_keys=true))}) -%}
        {%- if model_name == "cq_sync_log" -%}
            {%- do table.update({"verified_digest": row[2], "recorded": (row[3] or 0) | int}) -%}
        {%- endif -%}
        {%- do unproved.append(table) if table.verdict.get("fingerprint") != table.fingerprint -%}
    {%- endfor -%}
    {{ return({"tables": tables, "unproved": unproved, "before": before, "after": after}) }}
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
    {%- set judged = strandline._judge_batches(records, model.name, only_new=true)
        if name == "_cq_syncs" else strandline._judge_states(records, model.name) -%}
    {%- set failing = run_query("select distinct table_name from (\n" ~ judged.sql
        ~ "\n) as failures").columns[0].values() if judged.unproved else [] -%}
    {%- set pending = judged.unproved | map(attribute="name") | list -%}
    {%- set proved = {} -%}
    {%- for table in judged.tables
        if table.name not in pending or table.name not in failing -%}
        {%- set is_unchanged = table.verdict.get("fingerprint") == table.fingerprint -%}
        {%- do proved.update({table.name: table.verdict if is_unchanged
            else {"fingerprint": table.fingerprint}}) -%}
        {%- if table.recorded and not is_unchanged -%}
            {%- do proved[table.name].update({"recorded": table.recorded,
                "snapshot": table.snapshot,
                "facts": strandline._facts_digest(table, table.digest)}) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set verdicts = tojson(proved, sort_keys=true) -%}
    {{ return(
        "alter table " ~ this ~ " set tblproperties ('strandline.verdicts' = "
        ~ strandline._literal(strandline._encode(verdicts)) ~ ", 'strandline.build' = "
        ~ strandline._literal(invocation_id) ~ ")"
    ) }}
{%- endmacro %}
