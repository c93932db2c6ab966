{% macro _relation(schema, identifier, database=none) -%}
    {#- Returns a quoted relation. dbt-spark treats `catalog.schema` as one name, so in this case
        only the table is quoted. -#}
    {%- if target.type != "spark" -%}
        {{ return(api.Relation.create(database=database
            or target.database, schema=schema, identifier=identifier)) }}
    {%- endif -%}
    {%- do strandline._check_substitution(schema ~ "." ~ identifier) -%}
    {{ return(api.Relation.create(
        schema=schema,
        identifier=identifier,
        quote_policy={"database": false, "schema": "." not in schema, "identifier": true},
    )) }}
{%- endmacro %}


{% macro _relation_of(name) -%}
    {#- Returns the relation for a name that _table_name() returned. -#}
    {%- set schema, dot, identifier = name.rpartition(".") -%}
    {{ return(strandline._relation(schema, identifier)) }}
{%- endmacro %}


{% macro _node_relation(node) -%}
    {%- set identifier = node.identifier if node.resource_type == "source" else node.alias -%}
    {{ return(strandline._relation(node.schema, identifier, node.database)) }}
{%- endmacro %}


{% macro _table_name(relation) -%}
    {#- Returns `schema.table`, the format of names in watermarks and messages. -#}
    {{ return(relation.schema ~ "." ~ relation.identifier) }}
{%- endmacro %}


{% macro _find(relation) -%}
    {#- Returns the relation from the catalog, or none if it does not exist. dbt's own search finds
        neither a name with capitals nor a schema that includes a catalog. -#}
    {%- if target.type != "spark" -%}
        {{ return(adapter.get_relation(relation.database, relation.schema, relation.identifier)) }}
    {%- elif "." not in relation.schema and relation.identifier == relation.identifier | lower
        and relation.schema == relation.schema | lower -%}
        {{ return(load_relation(relation)) }}
    {%- endif -%}
    {%- for kind in ["table", "view"] -%}
        {%- for name in strandline._names_in(relation.schema, kind)
            if name == relation.identifier -%}
            {%- set properties = strandline._properties(relation) if kind == "table" else {} -%}
            {%- set iceberg = properties.get("format", "").startswith("iceberg") -%}
            {{ return(relation.incorporate(type=kind, is_iceberg=iceberg)) }}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro _exists(relation) -%}
    {%- if relation is string -%}
        {{ exceptions.raise_compiler_error(
            "This test needs the whole table, and `where` in its config would hide some rows. "
            ~ "Remove `where`. To exclude known incidents, set `acknowledged` in "
            ~ "config.meta.strandline of a source; to exclude tables from complete_recently, set "
            ~ "its `exclude_tables`."
        ) }}
    {%- endif -%}
    {{ return(strandline._find(relation) is not none) }}
{%- endmacro %}


{% macro _names_in(schema, kind) -%}
    {#- Returns the names of a schema's tables or views, or [] if the schema does not exist. -#}
    {%- set catalog, dot, name = schema.rpartition(".") -%}
    {%- set within = " in " ~ strandline._quote_path(catalog) if catalog else "" -%}
    {%- set schemas = run_query("show schemas" ~ within ~ " like " ~ strandline._literal(name)) -%}
    {%- if name | lower in schemas.columns[0].values() | map("lower") | list -%}
        {{ return(run_query("show " ~ kind ~ "s in " ~ strandline._quote_path(schema))
            .columns[1].values() | list) }}
    {%- endif -%}
    {{ return([]) }}
{%- endmacro %}


{% macro _quote_path(name) -%}
    {{ return(strandline._quote(name) | replace(".", "`.`")) }}
{%- endmacro %}


{% macro _properties(relation) -%}
    {#- Returns the table's properties, including Iceberg's `current-snapshot-id`. Reading them
        needs no Spark job, and all properties belong to the same version of the table. -#}
    {%- do strandline._check_substitution(relation | string) -%}
    {%- set properties = {} -%}
    {%- if target.type != "spark" -%}
        {{ return(properties) }}
    {%- endif -%}
    {%- for row in run_query("show tblproperties " ~ relation) -%}
        {%- do properties.update({row[0]: strandline._decode(row[1])}) -%}
    {%- endfor -%}
    {{ return(properties) }}
{%- endmacro %}


{% macro _snapshot(properties) -%}
    {%- set snapshot = properties.get("current-snapshot-id", "none") -%}
    {{ return(none if snapshot == "none" else snapshot) }}
{%- endmacro %}


{% macro _pinned(relation, snapshot) -%}
    {#- Returns a table as of an Iceberg snapshot or tag, or the current table if it is none. -#}
    {{ return(relation ~ (" version as of " ~ snapshot if snapshot else "")) }}
{%- endmacro %}


{% macro _encode(text) -%}
    {#- Inserts an invisible separator between the characters of a property's value. Otherwise Spark
        would redact a value that contains a word such as `token` or `url`, and column names and
        SELECTs may contain such words. -#}
    {{ return(text | join("\u2063")) }}
{%- endmacro %}


{% macro _decode(text) -%}
    {{ return(text | replace("\u2063", "")) }}
{%- endmacro %}


{% macro _columns(relation) -%}
    {#- Returns the columns of an existing table as {lower-case name: {name, type}}. -#}
    {%- set columns = {} -%}
    {%- for column in adapter.get_columns_in_relation(relation) -%}
        {%- do columns.update({column.name | lower: {"name": column.name,
            "type": column.dtype}}) -%}
    {%- endfor -%}
    {{ return(columns) }}
{%- endmacro %}
