{% macro maintained_table(relation, owner) -%}
    {#- The table that a run-operation names, `schema.table`, or a table of the raw schema. -#}
    {%- if relation is not string -%}
        {{ return(relation) }}
    {%- endif -%}
    {%- set schema, dot, table = relation.partition(".") -%}
    {%- set named = strandline.exactly(schema if dot else strandline.raw_schema(), table if dot else relation) -%}
    {%- if not strandline.exists(named) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": there is no table " ~ named.schema ~ "." ~ named.identifier ~ ". Name it as schema.table."
        ) }}
    {%- endif -%}
    {{ return(named) }}
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
        Two writers in one catalog of the type hadoop can lose a commit, and dbt does not hold the
        loader's locks. Other catalogs tell two writers apart: the later one fails or tries again.
    -#}
    {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] -%}
    {%- set setting = "spark.sql.catalog." ~ catalog -%}
    {%- set type = run_query("set " ~ strandline.quoted(setting ~ ".type")).columns[1].values()[0] -%}
    {%- set implementation = run_query("set " ~ strandline.quoted(setting ~ ".catalog-impl")).columns[1].values()[0] -%}
    {%- if not alone and (type == "hadoop" or implementation.endswith("HadoopCatalog")) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the catalog " ~ catalog ~ " is a folder (type hadoop), in which two writers can overwrite each "
            ~ "other's commits, and dbt does not hold the loader's locks. Use `loader compact`, which does; or see to it "
            ~ "that no loader and no other dbt runs meanwhile, and say so: alone: true."
        ) }}
    {%- endif -%}
{%- endmacro %}
