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


{% macro changing_function(sql, columns=[]) -%}
    {#-
        What in an SQL text gives something else at another time, in another session or from other files, as it is
        written there; none if nothing does. Not if it is the name of one of the columns, or any name in backticks, after
        a dot or after `as`.
    -#}
    {%- set code = modules.re.sub("`[^`]*`(?!\\s*\\()", " ", strandline.code_of(sql)).replace("`", "") | lower -%}
    {%- set words = ["current_date", "current_timestamp", "current_time", "localtimestamp", "current_user", "session_user",
        "_file", "_pos"] | reject("in", columns | map("lower") | list) | list -%}
    {%- set functions = ["current_(?:catalog|database|schema|date|time|timestamp|timezone|user)", "localtimestamp",
        "session_user", "now", "curdate", "user", "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "reflect",
        "java_method", "monotonically_increasing_id", "input_file_\\w+", "spark_partition_id"] -%}
    {%- set called = modules.re.search(
        "(?<![\\w.])(?:(?<!\\bas )(?:" ~ words | join("|") ~ ")\\b(?!\\s*\\()"
        ~ "|(?:" ~ functions | join("|") ~ ")(?=\\s*\\()|unix_timestamp(?=\\s*\\(\\s*\\)))",
        code
    ) -%}
    {#- Spark takes such a text for a time where it stands for one; compared by `=`, it may be no more than a text. -#}
    {%- set written = modules.re.search(
        "(?i)(?:\\b(?:date|timestamp(?:_ntz|_ltz)?)\\s*|\\b(?:cast|try_cast|date|timestamp|to_date|to_timestamp\\w*)\\s*\\(\\s*"
        ~ "|<(?!=?>)=?\\s*|(?<![<=])>=?\\s*|\\bbetween\\s*)'\\s*(?:now|today|yesterday|tomorrow)\\s*'",
        strandline.as_written(sql)
    ) -%}
    {{ return((called or written).group(0) if called or written else none) }}
{%- endmacro %}


{% macro check_repeatable(sql, columns, owner, reads="its SELECT") -%}
    {#- A merge keeps what a SELECT gave for a version when it was new; a proof asks the SELECT again. -#}
    {%- set changing = strandline.changing_function(sql, columns) -%}
    {%- if changing -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ reads ~ " uses " ~ changing ~ ", which gives something else at each build, while the table keeps what "
            ~ "it gave when a version was new. Use it in a model that reads " ~ this ~ "; for the time at which a row was "
            ~ "loaded, there is _cq_sync_time."
        ) }}
    {%- endif -%}
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
    {%- set changing = strandline.changing_function(given or "")
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
        "(`[^`]*`)|\\b[rR](?:'[^']*'|\"[^\"]*\")|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|--[^\\n]*|/\\*.*?\\*/",
        "\\1 ",
        sql,
        flags=modules.re.DOTALL
    )) }}
{%- endmacro %}
