{% macro check_select_text(sql, owner) -%}
    {#- What no subquery can hold; looked for outside of text, names and comments. -#}
    {%- if strandline.code_of(sql).rstrip().endswith(";") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT ends in a semicolon. Remove it: the build reads the SELECT as a part of its statements."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro check_column_types(selected, owner) -%}
    {#- The columns of query_types(): `null as note` is of a type that no table can hold. -#}
    {%- for column in selected.values() if modules.re.search("(^|[<:,])void(?=$|[>,])", column.type) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its column " ~ column.name ~ " is null and nothing else, so it has no type. Give it one: "
            ~ "cast(null as string) as " ~ column.name ~ "."
        ) }}
    {%- endfor -%}
{%- endmacro %}


{% macro check_row_filter(kind, owner) -%}
    {#-
        A row_filter is asked once of each version, when it comes: of nothing that the history computes later, and
        of nothing whose answer changes without a new version.
    -#}
    {%- set given = config.get("row_filter") -%}
    {%- if given is not none and given is not string -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter is " ~ tojson(given) ~ ", not an SQL condition. Write one as text: row_filter=\"status = 'open'\"."
        ) }}
    {%- endif -%}
    {%- set code = strandline.code_of(given or "") | lower -%}
    {%- set added = "\\b(" ~ kind.added_columns | join("|") ~ ")\\b" if kind.added_columns else "(?!)" -%}
    {%- set computed = modules.re.search(added, code.replace("`", " ")) -%}
    {%- if computed is not none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter names " ~ computed.group(1) ~ ", which the history computes of the versions that "
            ~ "row_filter has let through. Put the condition into a model that reads " ~ this ~ "."
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
            owner ~ ": its row_filter asks for " ~ ("another SELECT" if asked == "select" else asked) ~ ", whose answer changes without a "
            ~ "new version, while a version is asked once, when it comes. Put the condition into a model that reads "
            ~ this ~ "."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro as_written(sql) -%}
    {#- SQL without its comments and line breaks, which say nothing: but for those of union_raw(), which name tables. -#}
    {{ return(modules.re.sub(
        "(`[^`]*`|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|/\\* (?:end of )?union_raw.*?\\*/)"
        ~ "|(?:--[^\\n]*|/\\*(?! (?:end of )?union_raw).*?\\*/|\\s)+",
        "\\1 ",
        sql,
        flags=modules.re.DOTALL
    ).strip()) }}
{%- endmacro %}


{% macro code_of(sql) -%}
    {#- SQL without its comments and what its text literals say; names in backticks stay. -#}
    {{ return(modules.re.sub(
        "(`[^`]*`)|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|--[^\\n]*|/\\*.*?\\*/",
        "\\1 ",
        sql,
        flags=modules.re.DOTALL
    )) }}
{%- endmacro %}
