{% macro maintained_table(relation, alone, owner) -%}
    {#- The table that a run-operation names, `schema.table`; it must be one that dbt builds. -#}
    {%- set table = relation -%}
    {%- if relation is string -%}
        {%- set schema, dot, identifier = relation.rpartition(".") -%}
        {%- set table = strandline.exactly(schema if dot else target.schema, identifier) -%}
    {%- endif -%}
    {%- if not strandline.exists(table) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": there is no table " ~ strandline.name_of(table) ~ ". Name it as schema.table."
        ) }}
    {%- endif -%}
    {%- do strandline.check_not_the_loaders(table, owner) -%}
    {%- do strandline.check_alone(alone, owner) -%}
    {{ return(table) }}
{%- endmacro %}


{% macro check_not_the_loaders(relation, owner) -%}
    {#-
        The loader recovers from a raw table's commits and publishes from its Iceberg snapshots, and only
        `loader compact` can decide which versions are still needed. It also keeps state and ledger small.
    -#}
    {%- if strandline.is_raw(strandline.full_name(relation)) or relation.identifier.startswith("_cq_") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ strandline.name_of(relation) ~ " is the loader's, and dbt does not know what the next sync needs "
            ~ "from it. Use `loader compact --select SOURCE.TABLE`."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro full_name(relation) -%}
    {{ return(strandline.quoted_path(relation.schema) ~ "." ~ strandline.quoted(relation.identifier)) }}
{%- endmacro %}


{% macro is_raw(name) -%}
    {#- Whether the loader publishes batches to a table. -#}
    {{ return(strandline.table_properties(name).get("write.wap.enabled") == "true") }}
{%- endmacro %}


{% macro check_alone(alone, owner) -%}
    {#-
        Two writers in a catalog of type hadoop can lose a commit. Other catalogs detect the conflict: the
        later writer fails or tries again.
    -#}
    {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] -%}
    {%- set setting = "spark.sql.catalog." ~ catalog -%}
    {%- set type = run_query("set " ~ strandline.quoted(setting ~ ".type")).columns[1].values()[0] -%}
    {%- set implementation = run_query("set " ~ strandline.quoted(setting ~ ".catalog-impl")).columns[1].values()[0] -%}
    {%- if not alone and (type == "hadoop" or implementation.endswith("HadoopCatalog")) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the catalog " ~ catalog ~ " is a folder (type hadoop), in which two writers can overwrite each "
            ~ "other's commits. Make sure that no other dbt is running, then say so: alone: true."
        ) }}
    {%- endif -%}
{%- endmacro %}
