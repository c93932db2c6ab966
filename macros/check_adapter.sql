{% macro check_adapter(type) -%}
    {#-
        Refuses a target other than dbt-spark with one error that says what is missing, instead of a database
        error for each table. `type` is the adapter's.
    -#}
    {%- if type != "spark" -%}
        {%- set lacks = "Databricks' own tables have no such metadata tables, though its adapter inherits from dbt-spark"
            if type == "databricks" else "dbt-" ~ type ~ " has neither" -%}
        {{ exceptions.raise_compiler_error(
            "The package strandline needs dbt-spark and Apache Iceberg: it merges with SQL that Iceberg's Spark runtime runs, "
            ~ "and reads the metadata tables `.snapshots`, `.history` and `.refs`. The target '" ~ target.name ~ "' is of type "
            ~ type ~ ": " ~ lacks ~ ". Choose a target of `type: spark` whose catalog is Iceberg's (dbt_packages/strandline/docs/macros.md)."
        ) }}
    {%- endif -%}
{%- endmacro %}
