{% macro quoted(name) -%}
    {{- "`" ~ (name | replace("`", "``")) ~ "`" -}}
{%- endmacro %}


{% macro text_literal(text) -%}
    {#- Spark reads backslash escapes in string literals: an unescaped quote or backslash would end or change one. -#}
    {{- "'" ~ (text | string | replace("\\", "\\\\") | replace("'", "\\'")) ~ "'" -}}
{%- endmacro %}


{% macro quoted_path(name) -%}
    {#- A namespace with each part quoted: dbt-spark knows no catalogs and takes `catalog.schema` for a schema. -#}
    {%- set parts = [] -%}
    {%- for part in name.split(".") -%}
        {%- do parts.append(strandline.quoted(part)) -%}
    {%- endfor -%}
    {{ return(parts | join(".")) }}
{%- endmacro %}


{% macro name_of(relation) -%}
    {#- A table's name for watermarks and messages: `schema.table`; in another catalog, `catalog.schema.table`. -#}
    {%- set schema = relation.schema -%}
    {%- if "." in schema -%}
        {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] ~ "." -%}
        {%- set schema = schema[catalog | length:] if schema.startswith(catalog) else schema -%}
    {%- endif -%}
    {{ return(schema ~ "." ~ relation.identifier) }}
{%- endmacro %}
