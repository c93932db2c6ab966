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
    {%- for column in selected.values() if column.get("twice") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT has two columns named " ~ column.name ~ "; `select *, ... as " ~ column.name ~ "` keeps the "
            ~ "first one, too. Give the new one another name, or list the columns instead of `*`."
        ) }}
    {%- endfor -%}
    {%- for column in selected.values() if column.name | lower in ["_file", "_pos", "_deleted", "_spec_id", "_partition"] -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT has a column " ~ column.name ~ ", a name that Iceberg keeps for itself: nobody could read the "
            ~ "table. Give the column another name."
        ) }}
    {%- endfor -%}
    {%- set cursor = config.get("cursor_field") -%}
    {%- for name in strandline.key_columns(config.get("primary_key"), owner) + ([cursor] if cursor else []) -%}
        {%- set type = selected.get(name | lower, {}).get("type") or "" -%}
        {%- if "map<" in type -%}
            {{ exceptions.raise_compiler_error(
                owner ~ ": its " ~ ("cursor_field" if name == cursor else "primary_key") ~ " " ~ name ~ " is of type " ~ type
                ~ ", and maps cannot be compared. Choose another column, or select to_json(" ~ name ~ ") as a column of its own."
            ) }}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro %}


{% macro check_row_filter(kind, sql, owner) -%}
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
    {%- if given and (not code.strip() and given == modules.re.sub("['\"]", "", given) or code.rstrip().endswith(";")) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter " ~ tojson(given) ~ " is not one SQL condition. Write it without a semicolon: "
            ~ "row_filter=\"status = 'open'\"; for all rows, leave it out."
        ) }}
    {%- endif -%}
    {%- set added = "\\b(" ~ kind.added_columns | join("|") ~ ")\\b" if kind.added_columns else "(?!)" -%}
    {%- set computed = modules.re.search(added, code.replace("`", " ")) -%}
    {%- if computed is not none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter names " ~ computed.group(1) ~ ", which the history computes from the versions that "
            ~ "pass row_filter. Put the condition into a model that reads " ~ this ~ "."
        ) }}
    {%- endif -%}
    {%- set changing = strandline.changing_function(given or "", rows=sql)
        or ("another SELECT" if modules.re.search("\\bselect\\b", modules.re.sub("`[^`]*`", " ", code)) else none) -%}
    {%- if changing is not none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter uses " ~ changing ~ ", whose result changes without a new version, but the filter runs "
            ~ "only when a version arrives. Put the condition into a model that reads " ~ this ~ "."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro as_written(sql) -%}
    {#- SQL without line breaks and comments, which mean nothing, except union_raw()'s comments, which name tables. -#}
    {{ return(modules.re.sub(
        "(`[^`]*`|\\b[rR](?:'[^']*'|\"[^\"]*\")|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|/\\* (?:end of )?union_raw.*?\\*/)"
        ~ "|(?:--[^\\n]*|/\\*(?! (?:end of )?union_raw).*?\\*/|\\s)+",
        "\\1 ",
        sql,
        flags=modules.re.DOTALL
    ).strip()) }}
{%- endmacro %}


{% macro code_of(sql) -%}
    {#- SQL without its comments and string literals; names in backticks stay. -#}
    {{ return(modules.re.sub(
        "(`[^`]*`)|\\b[rR](?:'[^']*'|\"[^\"]*\")|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|--[^\\n]*|"
        ~ strandline.comment_pattern(),
        "\\1 ",
        sql,
        flags=modules.re.DOTALL
    )) }}
{%- endmacro %}


{% macro comment_pattern() -%}
    {#- Spark's comments may hold comments, here up to four deep. -#}
    {%- set nested = namespace(pattern="(?!)") -%}
    {%- for depth in range(4) -%}
        {%- set nested.pattern = "/\\*(?:" ~ nested.pattern ~ "|(?!/\\*|\\*/).)*\\*/" -%}
    {%- endfor -%}
    {{ return(nested.pattern) }}
{%- endmacro %}
