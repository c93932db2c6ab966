{% macro _inputs(sql, types, nodes, texts, raw_properties, owner) -%}
    {#- Returns the inputs of the model according to dbt's graph: {tables, every_build, is_plain}.
        If a SELECT reads only columns and expressions of one raw table or of union_raw(), its new
        rows can be merged. If a model has another SELECT, every build is a rebuild, and
        `every_build` is the reason. -#}
    {%- set tables = [] -%}
    {%- set others = [] -%}
    {%- for node in nodes -%}
        {%- set table = strandline._raw_table(node, sql, types, raw_properties, owner) -%}
        {%- if table is none -%}
            {%- do others.append(node.name) -%}
        {%- else -%}
            {%- do tables.append(table) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if not tables -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT reads no raw table by source(), so dbt cannot tell which batches "
            ~ "are new. Declare the raw table as a source, and write: select * from {{ "
            ~ "source('shop', 'orders') }}. A table that dbt builds in between does not show which "
            ~ "rows of the raw table it excludes: make it a view or ephemeral."
        ) }}
    {%- elif tables | length > 1 and not ("_cq_table" in types and "_cq_table_rank" in types) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": it reads " ~ tables | map(attribute="name") | join(" and ") ~ ", and each "
            ~ "of them numbers its own batches. For rows of one kind: select * from ({{ "
            ~ "strandline.union_raw([source(...), source(...)]) }}) as versions. For a join: build "
            ~ "a snapshot of each table, and join those."
        ) }}
    {%- endif -%}
    {%- set tables = tables | sort(attribute="name") -%}
    {%- set is_plain = tables | length == 1 and tables[0].is_plain -%}
    {%- set several = strandline._reads_several_rows(
        [strandline._without_unions(sql)] + texts.values() | list) if not is_plain else none -%}
    {%- set every_build = none -%}
    {%- if others -%}
        {%- set every_build = "it reads " ~ others | join(", ")
            ~ " besides the raw table, whose changes no batch shows" -%}
    {%- elif several -%}
        {%- set every_build = "its SELECT uses `" ~ several
            ~ "`, so a row may depend on more than one version" -%}
    {%- elif tables | length == 1 and (strandline._without_unions(sql) | replace(
        "`", "") | lower).count(tables[0].relation | string | replace("`", "") | lower) > 1 -%}
        {%- set every_build = "its SELECT reads " ~ tables[0].name ~ " more than once" -%}
    {%- endif -%}
    {{ return({"tables": tables, "every_build": every_build, "is_plain": is_plain}) }}
{%- endmacro %}


{% macro _collect_parents(unique_ids, nodes, texts) -%}
    {#- Collects the sources and tables that the nodes read, directly or through views and ephemeral
        models, and the SQL of these views and models. -#}
    {%- for unique_id in unique_ids -%}
        {%- set node = graph.sources.get(unique_id) or graph.nodes.get(unique_id) -%}
        {%- if node and node.resource_type == "model"
            and node.config.materialized in ("view", "ephemeral") -%}
            {%- do texts.update({unique_id: strandline._view_text(node)}) -%}
            {%- do strandline._collect_parents(node.depends_on.nodes, nodes, texts) -%}
        {%- elif node and node.resource_type in ("source", "model", "seed", "snapshot")
            and node.unique_id not in nodes | map(attribute="unique_id") | list -%}
            {%- do nodes.append(node) -%}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro %}


{% macro _view_text(node) -%}
    {#- Returns a view's SELECT from the catalog, because the code may depend on variables and
        macros. -#}
    {%- set relation = strandline._node_relation(node) -%}
    {%- if node.config.materialized != "view" or target.type != "spark"
        or not strandline._exists(relation) -%}
        {{ return(node.raw_code) }}
    {%- endif -%}
    {#- The SELECT follows the view's columns, comments and properties. Comments that dbt has
        persisted are removed first, because they could contain the separator. -#}
    {%- set statement = namespace(text=run_query(
        "show create table " ~ relation).columns[0].values()[0]) -%}
    {%- for described in [node] + node.columns.values() | list if described.description -%}
        {%- for comment in [described.description, described.description.replace("'", "\\'")] -%}
            {%- set statement.text = statement.text.replace(comment, "") -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(statement.text.split("\nAS", 1) | last) }}
{%- endmacro %}


{% macro _check_synced(nodes, owner) -%}
    {#- Checks that the raw tables exist, because Spark's error would not explain how to create
        them. -#}
    {%- for node in nodes if node.resource_type == "source" -%}
        {%- set relation = strandline._node_relation(node) -%}
        {%- if not strandline._exists(relation) -%}
            {{ exceptions.raise_compiler_error(
                owner ~ ": there is no table " ~ strandline._table_name(relation) ~ ": it has not "
                ~ "been synced into this warehouse. Run `loader run --select " ~ node.source_name
                ~ "." ~ node.identifier ~ "`, and build again."
            ) }}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro %}


{% macro _raw_table(node, sql, types, raw_properties, owner) -%}
    {#- Returns the node's raw table, or none if the node is not a raw table: {name, relation, id,
        snapshot, types, sources, key, first, compacted, is_plain, head, rows, delivered, floor,
        refreshes}. `is_plain` is true if the model's SELECT is the whole raw table. -#}
    {%- set relation = strandline._node_relation(node) -%}
    {%- set name = strandline._table_name(relation) -%}
    {%- set is_plain = sql.split() | join(" ") | replace("`", "") | lower
        == ("select * from " ~ relation) | replace("`", "") | lower -%}
    {%- set raw_types = {} -%}
    {%- for column_name, column in (types if is_plain
        else strandline._columns(relation)).items() -%}
        {%- do raw_types.update({column_name: column.type}) -%}
    {%- endfor -%}
    {%- if "_cq_batch" not in raw_types or "_cq_seq" not in raw_types
        or node.resource_type in ("model", "snapshot") -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set properties = raw_properties.get(name) or strandline._properties(relation) -%}
    {%- if not properties.get("format", "").startswith("iceberg") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its source " ~ name ~ " is a view or not an Iceberg table, so it "
            ~ "does not show which versions of the raw table it excludes. Declare the raw "
            ~ "table as the source, and move the SELECT into a model that reads it (materialized='view')."
        ) }}
    {%- endif -%}
    {{ return({
        "name": name,
        "relation": relation,
        "id": properties.get("strandline.table-id"),
        "snapshot": strandline._snapshot(properties),
        "types": raw_types,
        "sources": strandline._sources_of(properties),
        "key": strandline._settings(node).unique_key,
        "first": properties.get("strandline.first-batch", 1) | int,
        "compacted": properties.get("strandline.compacted_to", 0) | int,
        "is_plain": is_plain,
        "head": 0,
        "rows": 0,
        "delivered": 0,
        "floor": none,
        "refreshes": [],
    }) }}
{%- endmacro %}


{% macro _reads_several_rows(texts) -%}
    {#- Returns the first word by which a row may depend on several versions, or none. Searches the
        plain text, including comments, because a false match only causes an unnecessary
        rebuild. -#}
    {%- set words = [
        " join ", " over ", " over(", " group by ", " distinct ", " having ", " limit ", " exists ",
        " exists(",
        " lateral ", " union ", " intersect ", " except ", " minus ", " qualify ", " tablesample ",
        " as of ",
        " explode(", " ( with ", " cluster by ", " distribute by ", " pivot", " unpivot",
    ] -%}
    {%- for text in texts -%}
        {%- set plain = " " ~ text.replace("(", " ( ").replace(")", " ) ").split() | join(
            " ") | lower ~ " " -%}
        {%- for word in words if word.replace("(", " (") in plain -%}
            {{ return(word | trim | replace("(", "")) }}
        {%- endfor -%}
        {%- if plain.count("( select ") > plain.count(" from ( select ") + plain.count(
            " as ( select ") -%}
            {{ return("select") }}
        {%- endif -%}
        {%- for part in plain.split(" from ")[1:]
            if "," in part.split(" where ")[0].split("(")[0].split(")")[0] -%}
            {{ return("from " ~ part[:30] | trim) }}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro _lineage(table, since) -%}
    {#- Returns the commits of a raw table after the Iceberg snapshot `since`: {is_ancestor,
        batches: {batch: rows}, foreign, is_rewritten}. `is_ancestor` is whether the current
        snapshot descends from `since`. `foreign` is true if a commit is not a batch that the loader
        appended. `is_rewritten` is true if all commits only rewrote files. If a batch was published
        on top of another commit, its commit contains only the batch number. -#}
    {%- set commits = {} -%}
    {%- for row in (table.commits if "commits" in table
        else run_query(strandline._commits_sql([table.relation]))) -%}
        {%- do commits.update({row[3]: {"parent": row[4], "operation": row[5], "batch": row[1],
            "rows": row[2], "at": row[6] | int}}) -%}
    {%- endfor -%}
    {%- set at = namespace(snapshot=table.snapshot | string, foreign=false, passed=false,
        rewritten=true) -%}
    {%- set batches = {} -%}
    {%- for step in range(commits | length) if at.snapshot != since | string
        and at.snapshot in commits -%}
        {%- set commit = commits[at.snapshot] -%}
        {%- set at.rewritten = at.rewritten and commit.operation == "replace" -%}
        {%- if commit.operation == "append" and commit.batch
            and not commit.batch.strip("0123456789") and commit.batch | int not in batches -%}
            {%- do batches.update({commit.batch | int: (commit.rows or 0) | int}) -%}
        {%- else -%}
            {%- set at.foreign = true -%}
        {%- endif -%}
        {#- If commits have expired before `since` is reached, `since` is assumed to be an ancestor.
            `since` cannot be an ancestor if an older commit was reached. -#}
        {%- set at.passed = since | string in commits and commit.at < commits[since | string].at -%}
        {%- set at.snapshot = commit.parent or "" -%}
    {%- endfor -%}
    {{ return({
        "is_ancestor": since is none or at.snapshot == since | string
            or at.snapshot and at.snapshot not in commits and not at.passed,
        "batches": batches,
        "foreign": at.foreign or at.snapshot != since | string,
        "is_rewritten": at.rewritten and at.snapshot == since | string,
    }) }}
{%- endmacro %}


{% macro _read_new_batches(spec, mark) -%}
    {#- Reads the batches of the raw tables after the newest batch that the model's table shows. If
        the SELECT has changed or a raw table was recreated, reads all batches. -#}
    {%- for table in spec.tables -%}
        {%- set shown = (mark.tables if mark is not none and mark.definition == spec.definition
            else []) | selectattr("name", "equalto", table.name)
            | selectattr("id", "equalto", table.id) | map(attribute="batch") | list -%}
        {%- do strandline._read_batches(table, shown[0] if shown else 0) -%}
    {%- endfor -%}
{%- endmacro %}


{% macro _read_batches(table, low) -%}
    {#- Reads the later batches of a raw table. Sets `low`, `head` (the newest batch), `rows` (of
        the whole table; many if the newest commit does not contain the number), `has_ledger`, and
        `commits` and `new` (see _count_batches()). If there are none, reads the newest batch from
        Iceberg's metadata, because the table may end before `low`. -#}
    {%- do table.update({"low": low, "commits": [], "new": {}}) -%}
    {%- if flags.EMPTY or table.snapshot is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set syncs = strandline._own_table(table.relation.schema, "_cq_syncs") -%}
    {%- set has_ledger = table.id and strandline._exists(syncs) -%}
    {%- do strandline._count_batches([table], syncs if has_ledger else none) -%}
    {%- for commit in table.commits if commit[3] == table.snapshot -%}
        {%- do table.update({"rows": commit[7] | int(100000000)}) -%}
    {%- endfor -%}
    {%- set head = ([low] + table.new.items() | selectattr("1.raw_rows") | map("first")
        | list) | max -%}
    {%- if head == low -%}
        {%- set head = strandline._value("select max(_cq_batch) from "
            ~ strandline._pinned(table.relation, table.snapshot)) or 0 -%}
    {%- endif -%}
    {%- do table.update({"has_ledger": has_ledger, "head": head | int}) -%}
{%- endmacro %}


{% macro _count_batches(tables, syncs) -%}
    {#- Reads the batches after `low` of each raw table, its commits and its ledger with one
        statement. Adds to `commits`, and to `new`: {batch: {raw_rows, generation,
        without_generation, ledger_rows, ledger_generation, entries}}. Rows without a valid batch
        number are counted, too. -#}
    {%- set by_name, bounds = {}, [] -%}
    {%- for table in tables -%}
        {%- do by_name.update({table.relation.identifier: table}) -%}
        {%- do bounds.append([table.relation.identifier,
            [table.low, table.compacted, table.first - 1] | max]) -%}
    {%- endfor -%}
    {#- All tables are grouped together. With a GROUP BY for each table, Spark takes three times as
        long for fifty tables. -#}
    {%- set batches_sql -%}
        {{ strandline._commits_sql(tables | map(attribute="relation")) }}
        union all
        select
            'raw',
            cast(_cq_batch as string),
            cast(count(*) as string),
            cast(max(_cq_generation) as string),
            cast(count(*) - count(_cq_generation) as string),
            null,
            null,
            null,
            table_name
        from (
            {%- for table in tables %}
            select
                {{ strandline._literal(table.relation.identifier) }} as table_name,
                _cq_batch,
                _cq_generation
            from {{ strandline._pinned(table.relation, table.snapshot) }} as versions
            where _cq_batch > {{ table.low }} or _cq_batch < 1 or _cq_batch is null
            {{- "\n            union all" if not loop.last }}
            {%- endfor %}
        ) as new_versions
        group by table_name, _cq_batch
        {%- if syncs %}
        union all
        select
            'ledger',
            cast(batch as string),
            cast(sum(rows_appended) as string),
            cast(max(generation) as string),
            cast(count(*) as string),
            null,
            null,
            null,
            table_name
        from {{ syncs }} as syncs
        {%- if bounds | length == 1 %}
        where table_name = {{ strandline._literal(bounds[0][0]) }}
            and batch > {{ bounds[0][1] }}
        {%- else %}
        -- Joined, because a condition for each of hundreds of tables takes minutes.
        inner join (
            {{ strandline._literal_rows({"bounded_table": "string", "low": "bigint"}, bounds) }}
        ) as bounds
            on syncs.table_name = bounds.bounded_table
            and syncs.batch > bounds.low
        {%- endif %}
        group by table_name, batch
        {%- endif %}
    {%- endset -%}
    {%- for row in run_query(batches_sql) -%}
        {%- set table = by_name[row[8]] -%}
        {%- if row[0] == "commit" -%}
            {%- do table.commits.append(row) -%}
        {%- else -%}
            {%- set counts = table.new.setdefault(
                row[1] | int, {"raw_rows": 0, "ledger_rows": none, "entries": 0}) -%}
            {%- do counts.update({"raw_rows": row[2] | int, "generation": row[3] | int,
                "without_generation": row[4] | int} if row[0] == "raw"
                else {"ledger_rows": row[2] | int(none), "ledger_generation": row[3] | int,
                "entries": row[4] | int}) -%}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro %}


{% macro _commits_sql(relations) -%}
    select
        'commit' as kind,
        coalesce(summary['strandline.batch'], summary['published-wap-id']) as batch,
        summary['added-records'] as row_count,
        cast(snapshot_id as string) as snapshot_id,
        cast(parent_id as string) as parent_id,
        operation,
        cast(unix_micros(committed_at) as string) as committed_at,
        summary['total-records'] as total_rows,
        table_name
    from (
        {%- for relation in relations %}
        select
            *,
            {{ strandline._literal(relation.identifier) }} as table_name
        from {{ relation }}.snapshots
        {{- "\n        union all" if not loop.last }}
        {%- endfor %}
    ) as snapshots
{%- endmacro %}
