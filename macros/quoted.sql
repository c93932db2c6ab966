{% macro quoted(name) -%}
    {{- "`" ~ (name | replace("`", "``")) ~ "`" -}}
{%- endmacro %}


{% macro text_literal(text) -%}
    {#- Spark reads backslash escapes in string literals: a lone quote or backslash would end or change it. -#}
    {{- "'" ~ (text | string | replace("\\", "\\\\") | replace("'", "\\'")) ~ "'" -}}
{%- endmacro %}
