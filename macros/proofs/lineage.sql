{% macro broken_lineage(table, record) -%}
    {#-
        Why a raw table may no longer hold what it held when it was proved; none if the loader has only appended
        later batches to it since. Any other commit, compaction too, and a batch that reads a range or everything
        again, is a reason to begin anew.
    -#}
    {%- set then = record.raw_snapshot_id | string -%}
    {%- if table.snapshot == then -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set commits = strandline.commits_told(table.relation, table.snapshot) -%}
    {%- set at = namespace(snapshot=table.snapshot, reason=none) -%}
    {%- for step in commits if at.reason is none and at.snapshot != then -%}
        {%- set commit = commits.get(at.snapshot) -%}
        {%- if commit is none -%}
            {%- set at.reason = "the commits of " ~ table.name ~ " since then have expired, or it was replaced" -%}
        {%- else -%}
            {#- A batch that was published on top of another commit says only its number; the rest is with the staged one. -#}
            {%- set staged = commits.get(commit.staged or "", {}) -%}
            {%- set batch = commit.batch or (commit.published if not staged or staged.batch else none) -%}
            {%- set mode = commit.mode or staged.get("mode") -%}
            {%- if commit.operation != "append" or not modules.re.match("^[0-9]+$", batch or "") -%}
                {%- set at.reason = table.name ~ " was compacted, or something else wrote to it" -%}
            {%- elif batch | int <= record.batch | int -%}
                {%- set at.reason = "batch " ~ batch ~ " of " ~ table.name ~ " came after batch " ~ record.batch -%}
            {%- elif mode in ("full_refresh", "backfill", "reconcile") -%}
                {%- set at.reason = "batch " ~ batch ~ " of " ~ table.name ~ " is a " ~ mode -%}
            {%- endif -%}
            {%- set at.snapshot = commit.parent or "" -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if at.reason is none and at.snapshot != then -%}
        {{ return("the commits of " ~ table.name ~ " since then have expired, or it was replaced") }}
    {%- endif -%}
    {{ return(at.reason) }}
{%- endmacro %}


{% macro commits_told(relation, now) -%}
    {#-
        A table's Iceberg snapshots as they are when `now` is current, and perhaps later ones: {snapshot: {parent,
        operation, batch, published, staged, mode, rows, source}}. Asked once an invocation.
    -#}
    {%- set known = strandline.remembered("commits") -%}
    {%- set name = relation ~ " " ~ now -%}
    {%- if name not in known -%}
        {%- set commits_sql -%}
            select
                cast(snapshot_id as string),
                cast(parent_id as string),
                operation,
                summary['strandline.batch'],
                summary['published-wap-id'],
                summary['source-snapshot-id'],
                get_json_object(summary['strandline.sync'], '$.mode'),
                summary['added-records'],
                get_json_object(summary['strandline.sync'], '$.source_name')
            from {{ relation }}.snapshots as snapshots
        {%- endset -%}
        {%- set commits = {} -%}
        {%- for row in run_query(commits_sql) -%}
            {%- do commits.update({row[0]: {
                "parent": row[1], "operation": row[2], "batch": row[3], "published": row[4], "staged": row[5], "mode": row[6],
                "rows": row[7], "source": row[8],
            }}) -%}
        {%- endfor -%}
        {%- do known.update({name: commits}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro rows_told(table, low, high) -%}
    {#-
        How many rows the batches of a raw table have, {batch: rows}: by its commits, or by the ledger if commits of
        batches above `low`, up to `high`, have expired. Asked once an invocation.
    -#}
    {%- set known = strandline.remembered("rows") -%}
    {%- set name = table.relation ~ " " ~ table.snapshot -%}
    {%- if name not in known -%}
        {%- set rows = {} -%}
        {%- for commit in strandline.commits_told(table.relation, table.snapshot).values() if commit.operation == "append" -%}
            {%- set batch = commit.batch or commit.published or "" -%}
            {%- if modules.re.match("^[0-9]+$", batch) -%}
                {%- do rows.update({batch | int: commit.rows | int}) -%}
            {%- endif -%}
        {%- endfor -%}
        {%- do known.update({name: rows}) -%}
    {%- endif -%}
    {%- set syncs = strandline.syncs_relation(table.relation.schema) -%}
    {%- set told = known[name] | select("gt", low) | select("le", high) | list | length -%}
    {%- if name ~ " " ~ syncs not in known and told < high - low and strandline.exists(syncs) -%}
        {%- set rows_sql -%}
            select
                batch,
                sum(rows_appended)
            from {{ syncs }} as syncs
            where table_name = {{ strandline.text_literal(table.relation.identifier) }}
                and batch >= {{ table.first }}
            group by batch
        {%- endset -%}
        {%- set rows = dict(known[name]) -%}
        {%- for batch in run_query(rows_sql) -%}
            {%- do rows.update({batch[0] | int: batch[1] | int}) -%}
        {%- endfor -%}
        {%- do known.update({name: rows, name ~ " " ~ syncs: true}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro head_told(table) -%}
    {#- The newest batch of a raw table as of its snapshot; none without rows. Asked once an invocation. -#}
    {%- set known = strandline.remembered("heads") -%}
    {%- set name = table.relation ~ " version as of " ~ table.snapshot -%}
    {%- if name not in known -%}
        {%- do known.update({name: strandline.head_batch(name)}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro ledger_told(syncs) -%}
    {#- The newest batch of each table in a ledger: {table: batch}. Asked once an invocation. -#}
    {%- set known = strandline.remembered("ledgers") -%}
    {%- set name = syncs | string -%}
    {%- if name not in known -%}
        {%- set batches = {} -%}
        {%- for row in run_query("select table_name, max(batch) from " ~ syncs ~ " as syncs where batch is not null group by 1") -%}
            {%- do batches.update({row[0]: row[1] | int}) -%}
        {%- endfor -%}
        {%- do known.update({name: batches}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro properties_told(relation, head=none) -%}
    {#-
        The properties of a raw table, with its current snapshot: asked once an invocation by the tests of raw, and once
        by those of each table that covers it up to the batch `head`, which are built meanwhile. A later snapshot is
        not missed: the tests read the table as it is then, and the next invocation asks about what came after this one.
    -#}
    {%- set known = strandline.remembered("properties") -%}
    {%- set name = relation ~ " " ~ head -%}
    {%- if name not in known -%}
        {%- do known.update({name: strandline.table_properties(relation)}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro watermark_told(relation) -%}
    {#- The watermark of a table: asked once an invocation by its tests, which run once it is built. -#}
    {%- set known = strandline.remembered("watermarks") -%}
    {%- set name = relation | string -%}
    {%- if name not in known -%}
        {%- do known.update({name: strandline.watermark(relation)}) -%}
    {%- endif -%}
    {{ return(dict(known[name]) if known[name] is not none else none) }}
{%- endmacro %}


{% macro columns_told(relation) -%}
    {#- The columns of a table: asked once an invocation by all its tests. A model may change its own, so it asks again. -#}
    {%- if model is not defined or model.resource_type != "test" -%}
        {{ return(adapter.get_columns_in_relation(relation)) }}
    {%- endif -%}
    {%- set known = strandline.remembered("columns") -%}
    {%- set name = relation | string -%}
    {%- if name not in known -%}
        {%- do known.update({name: adapter.get_columns_in_relation(relation)}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro remembered(topic) -%}
    {#-
        What one invocation has asked so far, for answers that stay as they are meanwhile. Models and tests share
        nothing but the graph, which dbt keeps from one invocation to the next if its caller keeps the manifest.
    -#}
    {%- set kept = graph.setdefault("strandline_remembers", {}) -%}
    {%- if kept.get("invocation") != invocation_id -%}
        {%- do kept.clear() -%}
        {%- do kept.update({"invocation": invocation_id}) -%}
    {%- endif -%}
    {{ return(kept.setdefault(topic, {})) }}
{%- endmacro %}
