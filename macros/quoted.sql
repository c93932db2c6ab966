{% macro quoted(name) -%}
    {%- if "${" in name -%}
        {%- do strandline.check_name(name) -%}
    {%- endif -%}
    {{- "`" ~ (name | replace("`", "``")) ~ "`" -}}
{%- endmacro %}


{% macro text_literal(text) -%}
    {#-
        Spark reads backslash escapes in string literals: an unescaped quote or backslash would end or change one. It
        also replaces `${env:NAME}` in one, unless the session forbids it, but not if the dollar is an escape.
    -#}
    {{- "'" ~ (text | string | replace("\\", "\\\\") | replace("'", "\\'") | replace("${", "\\u0024{")) ~ "'" -}}
{%- endmacro %}


{% macro check_name(name) -%}
    {#-
        Refuses a name with `${` in a session that replaces `${env:NAME}` in SQL by a variable of the environment, as Spark
        does by default, in quoted names, too.
    -#}
    {%- if execute and "${" in name -%}
        {%- set known = strandline.remembered("substitution") -%}
        {%- if "on" not in known -%}
            {%- set setting = run_query("set spark.sql.variable.substitute").columns[1].values()[0] -%}
            {%- do known.update({"on": setting | lower != "false"}) -%}
        {%- endif -%}
        {%- if known["on"] -%}
            {{ exceptions.raise_compiler_error(
                "The name '" ~ name ~ "' has a `${`, and this session replaces such a part, perhaps by a secret of its "
                ~ "environment. Set `spark.sql.variable.substitute: \"false\"` in the target's server_side_parameters "
                ~ "(profiles.yml), or rename it in the source."
            ) }}
        {%- endif -%}
    {%- endif -%}
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
