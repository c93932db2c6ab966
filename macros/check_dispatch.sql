{% macro check_dispatch() -%}
    {#-
        dbt finds this package's way of listing Iceberg tables only where the root project says so.
        Asked while dbt parses: later, a schema that is not there yet has failed already.
    -#}
    {%- do strandline.check_adapter(adapter.type()) -%}
    {%- set found = adapter.dispatch("list_relations_without_caching", "dbt") -%}
    {%- if found.macro.package_name in ("dbt", "dbt_spark") -%}
        {{ exceptions.raise_compiler_error(
            "dbt_project.yml lacks the dispatch entry by which dbt can list Iceberg tables. Add:\n\n"
            ~ "dispatch:\n  - macro_namespace: dbt\n    search_order: ["
            ~ project_name ~ ", strandline, dbt]\n\n(strandline, docs/macros.md)"
        ) }}
    {%- endif -%}
{%- endmacro %}
