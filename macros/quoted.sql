{% macro quoted(name) -%}
    {{- "`" ~ (name | replace("`", "``")) ~ "`" -}}
{%- endmacro %}


{% macro text_literal(text) -%}
    {#- Spark reads backslash escapes in string literals: a lone quote or backslash would end or change it. -#}
    {{- "'" ~ (text | string | replace("\\", "\\\\") | replace("'", "\\'")) ~ "'" -}}
{%- endmacro %}


{% macro quoted_path(name) -%}
    {#- A namespace of several parts, each quoted: dbt-spark knows no catalogs, so `catalog.schema` is a schema to it. -#}
    {%- set parts = [] -%}
    {%- for part in name.split(".") -%}
        {%- do parts.append(strandline.quoted(part)) -%}
    {%- endfor -%}
    {{ return(parts | join(".")) }}
{%- endmacro %}


{% macro name_of(relation) -%}
    {#- How watermarks and messages name a table, `schema.table`; another catalog's with the catalog before it. -#}
    {%- set schema = relation.schema -%}
    {%- if "." in schema -%}
        {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] ~ "." -%}
        {%- set schema = schema[catalog | length:] if schema.startswith(catalog) else schema -%}
    {%- endif -%}
    {{ return(schema ~ "." ~ relation.identifier) }}
{%- endmacro %}
