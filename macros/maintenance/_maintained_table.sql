{% macro _maintained_table(relation, alone, owner) -%}
    {#- Returns the table of a run-operation (`schema.table`), which dbt must have built. -#}
    {%- set table = relation if relation is not string
        else strandline._relation_of(relation if "." in relation
        else target.schema ~ "." ~ relation) -%}
    {%- if not strandline._exists(table) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": there is no table " ~ strandline._table_name(table) ~ ". Specify it as "
            ~ "schema.table."
        ) }}
    {%- endif -%}
    {%- do strandline._check_not_the_loaders(table, owner) -%}
    {%- do strandline._check_alone(alone, owner) -%}
    {{ return(table) }}
{%- endmacro %}


{% macro _check_not_the_loaders(relation, owner) -%}
    {#- Rejects the loader's tables. The loader recovers from the commits of raw tables and
        publishes their Iceberg snapshots. Only `loader compact` can determine which versions are
        still needed. This command also compacts the state and the ledger. -#}
    {%- if strandline._properties(relation).get("write.wap.enabled") == "true"
        or relation.identifier.startswith("_cq_") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ strandline._table_name(relation) ~ " belongs to the loader, and "
            ~ "dbt cannot know which rows and snapshots the next sync needs. Use `loader compact "
            ~ "--select SOURCE.TABLE`."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro _check_alone(alone, owner) -%}
    {#- Rejects a catalog of type hadoop unless `alone` is set, because two writers could lose a
        commit. In other catalogs, the later writer detects the conflict and fails or retries. -#}
    {%- set catalog = strandline._value("select current_catalog()") -%}
    {%- set prefix = "spark.sql.catalog." ~ catalog -%}
    {%- if not alone and (strandline._setting(prefix ~ ".type") == "hadoop"
        or strandline._setting(prefix ~ ".catalog-impl").endswith("HadoopCatalog")) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the catalog " ~ catalog ~ " is a folder (type hadoop), in which two writers "
            ~ "can overwrite each other's commits. Make sure that no other program writes to it, "
            ~ "then set alone: true."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro _is_iceberg_catalog(catalog) -%}
    {{ return(strandline._setting("spark.sql.catalog." ~ catalog)
        == "org.apache.iceberg.spark.SparkCatalog") }}
{%- endmacro %}
