{% macro read_tables(sql, selected, views, owner) -%}
    {#-
        The raw tables that a model reads: [{name, relation, id, snapshot, columns, types, sources, key, head, floor, refreshes}],
        in the order in which union_raw() lists them; without union_raw(), in the order of the SELECT's text. Looks through views and
        ephemeral models, down to the raw tables behind them; a table that dbt builds from raw does not count. Under
        --defer, a view may read a table that is not here: then there is one entry without a name.
    -#}
    {%- set tables = [] -%}
    {%- set made_of_raw = [] -%}
    {%- for node in strandline.read_nodes(model.depends_on.nodes) -%}
        {%- set relation = strandline.relation_of(node) -%}
        {%- set types = {} -%}
        {%- if strandline.selects_whole_table(sql, [{"relation": relation}]) -%}
            {%- for name, column in selected.items() -%}
                {%- do types.update({name: column.type}) -%}
            {%- endfor -%}
        {%- else -%}
            {%- for column in adapter.get_columns_in_relation(relation) -%}
                {%- do types.update({column.name | lower: column.dtype}) -%}
            {%- endfor -%}
        {%- endif -%}
        {%- set names = types | list -%}
        {%- if "_cq_batch" in names and "_cq_seq" in names -%}
            {%- if node.resource_type in ("source", "seed") -%}
                {%- set properties = strandline.table_properties(relation) -%}
                {%- do strandline.check_is_a_table(relation, node, properties, owner) -%}
                {%- do tables.append({
                    "name": strandline.name_of(relation),
                    "relation": relation,
                    "id": properties.get("strandline.table-id"),
                    "snapshot": strandline.snapshot_in(properties),
                    "columns": names,
                    "types": types,
                    "sources": strandline.sharers_in(properties),
                    "key": ((node.config.get("meta") or {}).get("strandline") or {}).get("primary_key") or [],
                    "floor": none,
                    "refreshes": [],
                }) -%}
            {%- else -%}
                {%- do made_of_raw.append(node) -%}
            {%- endif -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if made_of_raw and not tables -%}
        {%- do strandline.refuse_between(made_of_raw[0], owner) -%}
    {%- elif not tables and not invocation_args_dict.get("defer") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT names no raw table by source(), so dbt does not know which table it reads, nor a build "
            ~ "what is new in it. Declare the raw table as a source, and write: select * from {{ source('shop', 'orders') }}"
        ) }}
    {%- endif -%}
    {%- set listed = strandline.union_names(tojson([sql, views])) -%}
    {%- if tables | map(attribute="name") | reject("in", listed) | list == [] -%}
        {%- set unsorted = tables -%}
        {%- set tables = [] -%}
        {%- for name in listed -%}
            {%- do tables.extend(unsorted | selectattr("name", "equalto", name)) -%}
        {%- endfor -%}
    {%- else -%}
        {#- dbt's parser returns source() calls in any order; only the SELECT's text has the right one. -#}
        {%- for table in tables -%}
            {%- do table.update({"place": strandline.place_in(sql, table.relation)}) -%}
        {%- endfor -%}
        {%- set tables = tables | sort(attribute="place,name") -%}
    {%- endif -%}
    {%- if tables | length > 1 and "_cq_table" not in selected -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": it reads " ~ tables | map(attribute="name") | join(" and ") ~ ", each of which numbers its own batches, "
            ~ "so each row must say which table it is from. For rows of one kind: select * from ("
            ~ "{{ strandline.union_raw([source(...), source(...)]) }}). For a join: build a snapshot of each, and join those."
        ) }}
    {%- endif -%}
    {#- Under --empty a model reads no rows; under --defer a view may read other tables than the graph says. -#}
    {%- set asked = not tables or invocation_args_dict.get("defer") -%}
    {%- set found = strandline.heads_in(sql, tables) if asked and not flags.EMPTY else {} -%}
    {%- set nameless = {
        "name": "", "relation": none, "id": none, "snapshot": none, "columns": [], "types": {}, "key": [], "floor": none, "refreshes": []
    } -%}
    {%- for table in tables or [nameless] -%}
        {%- if flags.EMPTY -%}
            {%- do table.update({"head": 0}) -%}
        {%- elif asked -%}
            {%- do table.update({"head": found.get(table.name, 0)}) -%}
        {%- else -%}
            {%- set head = strandline.head_told(table) if table.snapshot else strandline.head_batch(table.relation) -%}
            {%- do table.update({"head": head or 0}) -%}
        {%- endif -%}
        {%- if not tables -%}
            {%- do tables.append(table) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(tables) }}
{%- endmacro %}


{% macro check_is_synced(node, owner) -%}
    {#- A source that is not there: the schema is listed once an invocation, as Spark's own error has a stack trace. -#}
    {%- set relation = strandline.relation_of(node) -%}
    {%- if node.resource_type == "source" and "." not in relation.schema and strandline.in_iceberg_catalog() -%}
        {%- set listed = strandline.remembered("listed") -%}
        {%- if relation.schema not in listed -%}
            {%- set rows = strandline.spark__list_relations_without_caching(relation) -%}
            {%- do listed.update({relation.schema: rows | map(attribute=1) | map("lower") | list}) -%}
        {%- endif -%}
        {%- if relation.identifier | lower not in listed[relation.schema] -%}
            {{ exceptions.raise_compiler_error(
                owner ~ ": there is no table " ~ strandline.name_of(relation) ~ ": it has not been synced into this "
                ~ "warehouse. Run `loader run --select " ~ node.source_name ~ "." ~ node.identifier ~ "`, and build again."
            ) }}
        {%- endif -%}
    {%- endif -%}
{%- endmacro %}


{% macro check_is_a_table(relation, node, properties, owner) -%}
    {#- A view has no batches of its own, and does not show which of raw's it leaves out. -#}
    {%- if node.resource_type == "source" and not properties.get("format", "").startswith("iceberg") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its source " ~ strandline.name_of(relation) ~ " is not an Iceberg table but a view, or a table in "
            ~ "another format, and does not show which raw versions it leaves out. Declare the raw table as the source, and "
            ~ "move the view's SELECT into a model that reads it (materialized='view')."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro refuse_between(node, owner) -%}
    {#-
        A table between raw and its snapshot: a filter in it drops deletes, and a rebuild of it changes rows
        without a new batch. Neither shows in its rows, so a proof against it would pass.
    -#}
    {%- set table = strandline.name_of(strandline.relation_of(node)) -%}
    {%- if node.config.materialized in ("deduped_latest", "deduped_history") -%}
        {%- set remedy = "it is a " ~ node.config.materialized ~ " itself, and its versions are no longer raw's. Read it in a "
            ~ "model that is materialized as view, table or incremental." -%}
    {%- else -%}
        {%- set remedy = "it is a table that dbt builds (" ~ node.config.materialized ~ "), and does not show what it leaves "
            ~ "out of raw: a deleted row would stay. Set materialized='view' or 'ephemeral' in " ~ node.name
            ~ "; or, if " ~ node.name ~ " itself loads the raw data, declare its table as a source." -%}
    {%- endif -%}
    {{ exceptions.raise_compiler_error(owner ~ ": it reads " ~ table ~ ": " ~ remedy) }}
{%- endmacro %}


{% macro place_in(sql, relation) -%}
    {#- The position where a SELECT first names a table; tables that it reads through a view come last. -#}
    {%- set parts = [] -%}
    {%- for part in [relation.schema, relation.identifier] -%}
        {%- do parts.append("`?" ~ modules.re.escape(part) ~ "`?") -%}
    {%- endfor -%}
    {%- set found = modules.re.search("(?i)(?<![\\w`])" ~ parts | join("\\s*\\.\\s*") ~ "(?![\\w`])", sql) -%}
    {{ return(found.start() if found is not none else sql | length) }}
{%- endmacro %}


{% macro read_nodes(unique_ids) -%}
    {#- The sources and tables behind graph nodes, through views and ephemeral models. -#}
    {%- set found = [] -%}
    {%- set known = [] -%}
    {%- for unique_id in unique_ids -%}
        {%- if unique_id in graph.sources -%}
            {%- set behind = [graph.sources[unique_id]] -%}
        {%- else -%}
            {%- set node = graph.nodes.get(unique_id) -%}
            {%- if node is none or node.resource_type not in ("model", "seed", "snapshot") -%}
                {%- set behind = [] -%}
            {%- elif node.config.materialized in ("view", "ephemeral") -%}
                {%- set behind = strandline.read_nodes(node.depends_on.nodes) -%}
            {%- else -%}
                {%- set behind = [node] -%}
            {%- endif -%}
        {%- endif -%}
        {%- for node in behind if node.unique_id not in known -%}
            {%- do known.append(node.unique_id) -%}
            {%- do found.append(node) -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(found) }}
{%- endmacro %}


{% macro relation_of(node) -%}
    {%- set identifier = node.identifier if node.resource_type == "source" else node.alias -%}
    {{ return(strandline.exactly(node.schema, identifier)) }}
{%- endmacro %}


{% macro read_views(unique_ids) -%}
    {#- The text of each view behind graph nodes, as the catalog has it: changing a view changes what is read. -#}
    {%- set texts = {} -%}
    {%- for unique_id in unique_ids if unique_id in graph.nodes -%}
        {%- set node = graph.nodes[unique_id] -%}
        {%- if node.resource_type == "model" and node.config.materialized in ("view", "ephemeral") -%}
            {%- if node.config.materialized == "view" -%}
                {%- do texts.update({unique_id: strandline.view_text(strandline.relation_of(node))}) -%}
            {%- endif -%}
            {%- do texts.update(strandline.read_views(node.depends_on.nodes)) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(texts) }}
{%- endmacro %}


{% macro view_text(relation) -%}
    {#- none if there is no such view here, as under --defer. -#}
    {%- if strandline.existing(relation) is none -%}
        {{ return(none) }}
    {%- endif -%}
    {{ return(strandline.query_of(run_query("show create table " ~ relation).columns[0].values()[0])) }}
{%- endmacro %}


{% macro query_of(statement) -%}
    {#-
        The SELECT in the statement that would create a view. Before it are the view's columns, whose comments Iceberg
        does not escape, its own comment, and properties, which every Iceberg view has.
    -#}
    {%- set pair = "\\n  '(?:\\\\.|[^'\\\\])*' = '(?:\\\\.|[^'\\\\])*',?" -%}
    {%- set properties = "\\nTBLPROPERTIES \\((?:" ~ pair ~ ")*\\)" -%}
    {%- for before in [properties, "\\)(?:\\nCOMMENT '(?:\\\\.|[^'\\\\])*')?(?:" ~ properties ~ ")?"] -%}
        {%- set found = modules.re.search(before ~ "(?:\\nWITH SCHEMA [A-Z ]+)?\\nAS\\s", statement) -%}
        {%- if found is not none -%}
            {{ return(statement[found.end():]) }}
        {%- endif -%}
    {%- endfor -%}
    {{ return(statement) }}
{%- endmacro %}


{% macro existing(relation) -%}
    {#-
        The relation as the catalog has it, or none. dbt's own search finds neither a name with capitals nor a schema that
        names its catalog.
    -#}
    {%- if "." in relation.schema -%}
        {%- if relation.identifier in strandline.names_in(relation.schema, "views") -%}
            {{ return(relation.incorporate(type="view")) }}
        {%- elif relation.identifier in strandline.names_in(relation.schema, "tables") -%}
            {%- set format = strandline.table_properties(relation).get("format", "") -%}
            {{ return(relation.incorporate(type="table", is_iceberg=format.startswith("iceberg"))) }}
        {%- endif -%}
        {{ return(none) }}
    {%- endif -%}
    {%- if relation.identifier == relation.identifier | lower -%}
        {{ return(load_relation(relation)) }}
    {%- endif -%}
    {%- for row in list_relations_without_caching(relation.without_identifier()) if row[1] == relation.identifier -%}
        {{ return(relation.incorporate(
            type="view" if "Type: VIEW" in row[3] else "table", is_iceberg="Provider: iceberg" in row[3]
        )) }}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro heads_in(sql, tables) -%}
    {#- The newest batch of each table in the rows of a SELECT: {name: batch}. -#}
    {%- set many = tables | length > 1 -%}
    {%- set heads_sql -%}
        select
            {# With a name: agate calls a column without one `a`, and reads an empty text in it as none. -#}
            {{ "_cq_table" if many else strandline.text_literal((tables | map(attribute="name") | list + [""])[0]) ~ " as _cq_table" }},
            max(_cq_batch)
        from (
            {{ sql }}
        ) as versions
        {{- "\n        group by _cq_table" if many }}
    {%- endset -%}
    {%- set heads = {} -%}
    {%- for row in run_query(heads_sql) if row[1] is not none -%}
        {%- do heads.update({row[0]: row[1] | int}) -%}
    {%- endfor -%}
    {{ return(heads) }}
{%- endmacro %}


{% macro of_batches(tables, above=none, up_to=none, alias=none) -%}
    {#-
        The condition that a version's batch is above `above` and at most `up_to`, each the name of a
        table's entry ("low", "head"). Literals, not a subquery, so that Iceberg can prune raw files.
    -#}
    {%- set prefix = alias ~ "." if alias else "" -%}
    {%- set conditions = [] -%}
    {%- for table in tables -%}
        {%- set parts = [] -%}
        {%- if tables | length > 1 -%}
            {%- do parts.append(prefix ~ "_cq_table = " ~ strandline.text_literal(table.name)) -%}
        {%- endif -%}
        {%- if above -%}
            {%- do parts.append(prefix ~ "_cq_batch > " ~ table[above]) -%}
        {%- endif -%}
        {%- if up_to -%}
            {%- do parts.append(prefix ~ "_cq_batch <= " ~ table[up_to]) -%}
        {%- endif -%}
        {#- Of `x > 1 and x <= 1` Spark makes a null, and fails where it offers that to Iceberg as part of a filter. -#}
        {%- set empty = above and up_to and table[above] >= table[up_to] -%}
        {%- do conditions.append("false" if empty else parts | join(" and ")) -%}
    {%- endfor -%}
    {{ return("(" ~ conditions | join(" or ") ~ ")") }}
{%- endmacro %}
