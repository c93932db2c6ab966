{% macro _syncs(relation) -%}
    {#- Returns a ledger, or a SELECT without rows if it is missing. -#}
    {{ return(strandline._or_no_rows(relation, {
        "string": "run_id source_name table_name mode status cursor_field cursor_type cursor_low"
            ~ " cursor_high lookback schema_changes error loader_version",
        "bigint": "batch generation rows_read rows_appended rows_redelivered rows_null_cursor"
            ~ " rows_below_cursor rows_at_cursor rows_cursor_unmoved snapshot_id",
        "timestamp": "started_at finished_at complete_until",
    })) }}
{%- endmacro %}


{% macro _comparisons(relation) -%}
    {#- Returns the results of `loader reconcile`, or a SELECT without rows if there are none. -#}
    {{ return(strandline._or_no_rows(relation, {
        "string": "run_id source_name table_name columns_left_out key_columns",
        "bigint": "bucket buckets missed_updates missed_rows missed_deletes",
        "timestamp": "verified_at",
        "boolean": "repaired",
    })) }}
{%- endmacro %}


{% macro _own_table(schema, name) -%}
    {#- Returns a system table of the loader in a raw schema, under the identifier that the project
        sets. -#}
    {%- set node = strandline._own_source(name) -%}
    {{ return(strandline._relation(schema, node.get("identifier") or name, node.get("database"))) }}
{%- endmacro %}


{% macro _own_relation(name) -%}
    {#- Returns a system table of the loader in the raw schema that the project configures. -#}
    {{ return(strandline._own_table(strandline._own_source(name).get("schema"), name)) }}
{%- endmacro %}


{% macro _own_source(name) -%}
    {#- Returns a source of this package from the graph, or {} in a unit test or if the project has
        disabled the source. The source in the graph was rendered with the variables of this
        package, which tests in another project cannot read. -#}
    {{ return(graph.get("sources", {}).get("source.strandline.strandline." ~ name, {})
        if execute else {}) }}
{%- endmacro %}


{% macro _ledger_of(relation, owner) -%}
    {#- Returns the ledger in the schema of a raw table, or none in a unit test, whose inputs have
        no schema. -#}
    {%- if relation is string or not relation.schema and graph.get("nodes") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the ledger contains only raw tables. Pass the raw table itself, "
            ~ "source('shop', 'orders'), instead of a SELECT or an ephemeral model."
        ) }}
    {%- endif -%}
    {{ return(strandline._own_table(relation.schema, "_cq_syncs") if relation.schema else none) }}
{%- endmacro %}


{% macro _full_refreshes(relation, head, owner) -%}
    {#- Returns the complete full refreshes of a raw table up to a batch, oldest first: [{batch,
        generation, began_at, source}]. `began_at` is in microseconds, and `source` is none unless
        sources share the table. Keys that a complete full refresh did not find no longer exist in
        the source. An interrupted refresh is excluded, because it did not read all rows. A refresh
        with a higher generation than the newest batch is also excluded, because this means that the
        raw table was rolled back to a version from before the refresh. -#}
    {%- set syncs = strandline._ledger_of(relation, owner) -%}
    {%- if syncs is none -%}
        {{ return([]) }}
    {%- endif -%}
    {%- if not strandline._exists(syncs) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": delete_stale hides keys that the newest complete full refresh did not "
            ~ "find, and the ledger, which lists the complete refreshes, does not exist: " ~ syncs
            ~ ". `loader run` creates it; if it has another name, set the variable "
            ~ "strandline__syncs_table."
        ) }}
    {%- endif -%}
    {%- set sources = strandline._sources_of(strandline._properties(relation)) -%}
    {%- set refreshes_sql -%}
        select
            batch,
            max(generation),
            {{ strandline._to_micros("min(started_at)") }},
            max(source_name)
        from (
            {{ strandline._read_syncs(syncs, relation, "source_name" if sources else "1", head) }}
        ) as syncs
        where mode = 'full_refresh'
            and generation <= newest_generation
        group by batch
        order by batch
    {%- endset -%}
    {%- set refreshes = [] -%}
    {%- for row in run_query(refreshes_sql) -%}
        {%- do refreshes.append({
            "batch": row[0] | int,
            "generation": row[1] | int,
            "began_at": row[2] | int,
            "source": row[3] if sources else none,
        }) -%}
    {%- endfor -%}
    {{ return(refreshes) }}
{%- endmacro %}


{% macro _read_syncs(syncs, relation, by_source, head=none) -%}
    {#- Returns a SELECT of the syncs that appended batches up to `head` to a raw table, with the
        generation of the newest of these batches. -#}
    select
        *,
        first_value(generation) over (
            partition by {{ by_source }}
            order by batch desc nulls last, generation desc
        ) as newest_generation
    from {{ syncs }} as syncs
    where table_name = {{ strandline._literal(relation.identifier) }}
        and status in ('synced', 'recovered')
    {%- if head is not none %}
        and batch <= {{ head }}
    {%- endif %}
{%- endmacro %}


{% macro _add_full_refreshes(spec, owner) -%}
    {#- Sets `floor` and `refreshes` of the spec and of each table, which determine the keys that
        delete_stale hides. -#}
    {%- set floors = {} -%}
    {%- for table in spec.tables if table.head -%}
        {%- set refreshes = strandline._full_refreshes(table.relation, table.head, owner) -%}
        {%- do table.update({"refreshes": refreshes,
            "floor": strandline._generation_floor(refreshes)}) -%}
        {%- do floors.update({table.name: table.floor}) -%}
        {%- for refresh in refreshes -%}
            {%- do spec.refreshes.append(dict(refresh, table=table.name) if spec.union
                else refresh) -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- do spec.update({"floor": floors if spec.union else spec.tables[0].floor}) -%}
{%- endmacro %}


{% macro _generation_floor(refreshes) -%}
    {#- Returns the generation of the newest complete full refresh. For a shared table, returns
        {source: generation}. -#}
    {%- set floors = {} -%}
    {%- for refresh in refreshes -%}
        {%- do floors.update({refresh.get("source") or "": refresh.generation}) -%}
    {%- endfor -%}
    {{ return(floors.get("", floors or none)) }}
{%- endmacro %}


{% macro _from_generations(tables) -%}
    {#- Returns the condition for versions that no complete full refresh has replaced, or none if no
        table has a complete full refresh. -#}
    {%- set conditions = [] -%}
    {%- for table in tables if table.get("floor") is not none -%}
        {%- set condition -%}
        {{ "(_cq_table <> " ~ strandline._literal(table.name) ~ " or " if tables | length > 1 -}}
        _cq_generation >=
        {%- if table.floor is mapping %} case _cq_source_name
            {%- for source, generation in table.floor | dictsort %}
            when {{ strandline._literal(source) }} then {{ generation }}
            {%- endfor %} else 0 end
        {%- else %} {{ table.floor }}
        {%- endif %}
        {{- ")" if tables | length > 1 -}}
        {%- endset -%}
        {%- do conditions.append(condition) -%}
    {%- endfor -%}
    {{ return(conditions | join(" and ") or none) }}
{%- endmacro %}


{% macro _sources_of(properties) -%}
    {#- Returns the sources that share a raw table (`shared: true`), or [] for other tables. -#}
    {{ return(fromjson(properties.get("strandline.sources", "{}")) | list | sort) }}
{%- endmacro %}


{% macro _check_source_in_key(name, sources, key, owner) -%}
    {#- Rejects a key without the source if sources share the raw table, because rows of two sources
        are never versions of one row. -#}
    {%- if sources and "_cq_source_name" not in key | map("lower") | list -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the sources " ~ sources | join(", ") ~ " share " ~ name ~ ", so a row is "
            ~ "identified by its source and its key. Set unique_key=['_cq_source_name', '"
            ~ key | join("', '") ~ "']."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro _declared_tables(schema) -%}
    {#- Returns the raw tables of a schema that the project declares with `meta.strandline`: [{name,
        relation, settings}]. If several sources declare the same table, the table is returned
        once, with the acknowledged incidents of all these sources. -#}
    {%- set tables = {} -%}
    {%- for node in graph.sources.values() | sort(attribute="unique_id")
        if node.schema | lower == schema | lower and node.package_name != "strandline"
        and ((node.get("config") or {}).get("meta") or {}).get("strandline") is not none -%}
        {%- set relation = strandline._node_relation(node) -%}
        {%- set settings = strandline._settings(node) -%}
        {%- if relation | string in tables -%}
            {%- set first = tables[relation | string].settings -%}
            {%- set known = (first.get("acknowledged") or []) | list -%}
            {%- for entry in settings.get("acknowledged") or [] if entry not in known -%}
                {%- do known.append(entry) -%}
            {%- endfor -%}
            {%- set merged = dict(settings, **first) -%}
            {%- do merged.update({"acknowledged": known}) -%}
            {%- do tables[relation | string].update({"settings": merged}) -%}
        {%- else -%}
            {%- do tables.update({relation | string: {
                "name": node.identifier,
                "relation": relation,
                "settings": settings,
            }}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(tables.values() | list) }}
{%- endmacro %}


{% macro _ledger_tables(schema) -%}
    {#- Returns the declared tables that exist. -#}
    {%- set tables = [] -%}
    {%- for table in strandline._declared_tables(schema) if strandline._exists(table.relation) -%}
        {%- do tables.append(table) -%}
    {%- endfor -%}
    {{ return(tables) }}
{%- endmacro %}


{% macro _lost_tables(schema) -%}
    {#- Returns the declared tables that do not exist. Must be called after the ledger or state has
        been pinned to a snapshot. Each table in the pinned snapshot was created earlier, so a
        missing table has been dropped. Searches the catalog as well, because dbt's cache may be
        outdated. -#}
    {%- set tables = [] -%}
    {%- for table in strandline._declared_tables(schema)
        if not strandline._exists(table.relation) -%}
        {%- if target.type != "spark" or table.name | lower not in strandline._names_in(
            schema, "table") | map("lower") -%}
            {%- do tables.append(table) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(tables) }}
{%- endmacro %}


{% macro _missing_table(relation, remedy) -%}
    {#- Returns a failing row for each missing table, or no row if the schema has no raw table. -#}
    select
        {{ strandline._literal(strandline._table_name(relation)) }} as table_name,
        {{ strandline._literal("there is no such table: " ~ remedy) }} as problem
    {%- if not strandline._ledger_tables(relation.schema) %}
    where false
    {%- endif %}
{%- endmacro %}
