{% macro check_dispatch() -%}
    {#-
        dbt finds this package's macro for listing Iceberg tables only if the root project says so.
        Checked while dbt parses: any later, and a schema that does not exist yet has already failed.
    -#}
    {%- do strandline.check_adapter(adapter.type()) -%}
    {%- set found = adapter.dispatch("list_relations_without_caching", "dbt") -%}
    {%- if found.macro.package_name in ("dbt", "dbt_spark") -%}
        {{ exceptions.raise_compiler_error(
            "dbt_project.yml lacks the dispatch entry that lets dbt list Iceberg tables. Add:\n\n"
            ~ "dispatch:\n  - macro_namespace: dbt\n    search_order: ["
            ~ project_name ~ ", strandline, dbt]\n\n(dbt_packages/strandline/docs/macros.md)"
        ) }}
    {%- endif -%}
{%- endmacro %}
