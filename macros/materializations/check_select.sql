{% macro check_select_text(sql, owner) -%}
    {#- No subquery can hold a semicolon. Ignores those in strings, names and comments. -#}
    {%- if strandline.code_of(sql).rstrip().endswith(";") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT ends in a semicolon. Remove it: the build embeds the SELECT in its own statements."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro check_column_types(selected, owner) -%}
    {#- `selected` is from query_types(). `null as note` has a type that no table can hold. -#}
    {%- for column in selected.values() if modules.re.search("(^|[<:,])void(?=$|[>,])", column.type) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its column " ~ column.name ~ " is a bare null, so it has no type. Give it one: "
            ~ "cast(null as string) as " ~ column.name ~ "."
        ) }}
    {%- endfor -%}
{%- endmacro %}


{% macro check_row_filter(kind, owner) -%}
    {#-
        A row_filter is evaluated once per version, when it arrives. So it must not depend on what the history
        computes later, nor on anything that changes without a new version.
    -#}
    {%- set given = config.get("row_filter") -%}
    {%- if given is not none and given is not string -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter is " ~ tojson(given) ~ ", not an SQL condition. Write it as a string: row_filter=\"status = 'open'\"."
        ) }}
    {%- endif -%}
    {%- set code = strandline.code_of(given or "") | lower -%}
    {%- set added = "\\b(" ~ kind.added_columns | join("|") ~ ")\\b" if kind.added_columns else "(?!)" -%}
    {%- set computed = modules.re.search(added, code.replace("`", " ")) -%}
    {%- if computed is not none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter names " ~ computed.group(1) ~ ", which the history computes from the versions that "
            ~ "pass row_filter. Put the condition into a model that reads " ~ this ~ "."
        ) }}
    {%- endif -%}
    {%- set bare = modules.re.sub("`[^`]*`", " ", code) -%}
    {%- set changing = modules.re.search(
        "\\b(current_date|current_timestamp|current_time|localtimestamp|current_user|session_user)\\b"
        ~ "|\\b(now|curdate|user|rand|random|randn|randstr|uniform|uuid|monotonically_increasing_id)\\s*\\("
        ~ "|\\b(unix_timestamp)\\s*\\(\\s*\\)|\\b(select)\\b",
        bare
    ) -%}
    {%- if changing is not none -%}
        {%- set asked = changing.groups() | select | first -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter uses " ~ ("another SELECT" if asked == "select" else asked) ~ ", whose result changes without a "
            ~ "new version, but the filter runs only when a version arrives. Put the condition into a model that reads "
            ~ this ~ "."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro as_written(sql) -%}
    {#- SQL without line breaks and comments, which mean nothing, except union_raw()'s comments, which name tables. -#}
    {{ return(modules.re.sub(
        "(`[^`]*`|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|/\\* (?:end of )?union_raw.*?\\*/)"
        ~ "|(?:--[^\\n]*|/\\*(?! (?:end of )?union_raw).*?\\*/|\\s)+",
        "\\1 ",
        sql,
        flags=modules.re.DOTALL
    ).strip()) }}
{%- endmacro %}


{% macro code_of(sql) -%}
    {#- SQL without its comments and string literals; names in backticks stay. -#}
    {{ return(modules.re.sub(
        "(`[^`]*`)|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|--[^\\n]*|/\\*.*?\\*/",
        "\\1 ",
        sql,
        flags=modules.re.DOTALL
    )) }}
{%- endmacro %}
