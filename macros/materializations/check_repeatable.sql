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


{% macro changing_function(sql, columns=[], rows=none) -%}
    {#-
        What in an SQL text gives something else at another time, in another session or from other files, as it is
        written there; none if nothing does. Not if it is the name of one of the columns, or any name in backticks, after
        a dot or after `as`. `rows`: the SELECT that an expression is a condition on; none if the text is a SELECT itself.
    -#}
    {%- set code = modules.re.sub("`[^`]*`(?!\\s*\\()", " ", strandline.code_of(sql)).replace("`", "") | lower -%}
    {%- set functions = ["current_(?:catalog|database|schema|date|time|timestamp|timezone|user)", "localtimestamp",
        "session_user", "now", "curdate", "user", "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "reflect",
        "java_method", "monotonically_increasing_id", "input_file_\\w+", "spark_partition_id"] -%}
    {%- set called = modules.re.search(
        "(?<![\\w.])(?:(?:" ~ functions | join("|") ~ ")(?=\\s*\\()|unix_timestamp(?=\\s*\\(\\s*\\))"
        ~ "|tablesample(?=\\s*\\((?:[^()]|\\([^()]*\\))*\\)(?!\\s*repeatable\\b)))",
        code
    ) -%}
    {%- if called -%}
        {{ return(called.group(0)) }}
    {%- endif -%}
    {#- Words that mean a function, or what Spark adds to a table, unless there is a column of that name. -#}
    {%- set user = "\\bcurrent_user\\((?!\\)#)" -%}
    {%- set words = {"current_user": user, "session_user": user, "user": user,
        "_file": "RelationV2\\[.*\\b_file#", "_pos": "RelationV2\\[.*\\b_pos#"} -%}
    {%- for word in ["current_date", "current_timestamp", "current_time", "localtimestamp"] -%}
        {%- do words.update({word: "\\b" ~ word ~ "\\((?!\\)#)"}) -%}
    {%- endfor -%}
    {%- set bare = modules.re.findall("(?<![\\w.])(?<!\\bas )(?:" ~ words | join("|") ~ ")\\b(?!\\s*\\()", code)
        | reject("in", columns | map("lower") | list) | list -%}
    {%- set plan = strandline.planned(sql, rows) if bare else none -%}
    {%- for word in bare if plan is none or modules.re.search(words[word], plan.analyzed) -%}
        {{ return(word) }}
    {%- endfor -%}
    {{ return(strandline.text_taken_for_a_time(sql, rows)) }}
{%- endmacro %}


{% macro text_taken_for_a_time(sql, rows) -%}
    {#-
        A text such as 'today' in an SQL text, if Spark takes it for a time where it stands; else it is no more than a
        text. So Spark plans the SELECT with one time and with another in its place, both written as Spark does not write
        times, and the plans differ in more than these words.
    -#}
    {%- set text = "(['\"])\\s*(?:now|today|yesterday|tomorrow)(?:[^\\w'\"][^'\"]*)?\\1" -%}
    {%- set written = strandline.as_written(sql) -%}
    {#- Of VALUES, a plan does not show the rows. -#}
    {%- set typed = modules.re.search("(?i)\\b(?:date|timestamp(?:_ntz|_ltz)?)\\s*" ~ text, written) -%}
    {%- if typed or not modules.re.search("(?i)" ~ text, written) -%}
        {{ return(typed.group(0) if typed else none) }}
    {%- endif -%}
    {%- set tokens = modules.re.findall(
        "`[^`]*`|\\b[rR](?:'[^']*'|\"[^\"]*\")|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|--[^\\n]*|"
        ~ strandline.comment_pattern() ~ "|\\w+|.",
        sql,
        flags=modules.re.DOTALL
    ) -%}
    {%- set texts = [] -%}
    {%- set words = [] -%}
    {%- for time in ["+0871-2-3 4:5:6", "+1999-7-8 1:2:3"] -%}
        {%- set parts = [] -%}
        {%- for token in tokens -%}
            {%- set is_text = modules.re.fullmatch("(?i)r?" ~ text, token) -%}
            {%- do texts.append(token) if is_text -%}
            {%- do parts.append("'" ~ time ~ "'" if is_text else token) -%}
        {%- endfor -%}
        {%- set plan = strandline.planned(parts | join, rows) if texts else none -%}
        {%- if plan is not none -%}
            {#- Not by their order, in which Spark lists the texts of `in`, and without the names, which it numbers. -#}
            {%- set named = "\\w*#\\d+|cterelation\\w+ \\d+|[+]0871-2-3 4:5:6|[+]1999-7-8 1:2:3" -%}
            {%- do words.append(modules.re.findall("\\w+", modules.re.sub(named, " ", plan.optimized | lower)) | sort) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if not texts or words | length == 2 and words[0] == words[1] -%}
        {{ return(none) }}
    {%- elif words | length == 2 -%}
        {{ return(texts[0]) }}
    {%- endif -%}
    {#- Without a plan, the words around it have to tell. -#}
    {%- set likely = modules.re.search(
        "(?i)(?:\\b(?:cast|try_cast|date|timestamp|to_date|(?:try_)?to_timestamp\\w*)\\s*\\(\\s*"
        ~ "|<(?!=?>)=?\\s*|(?<![<=])>=?\\s*|\\bbetween\\s*)" ~ text,
        written
    ) -%}
    {{ return(likely.group(0) if likely else none) }}
{%- endmacro %}


{% macro planned(sql, rows=none) -%}
    {#-
        Spark's plans of a SELECT, or of one with a condition on `rows`: {analyzed, optimized}, with every field. none if
        Spark cannot resolve it, as it may be with the text of a view, or if the plan has not the form of Spark's own.
    -#}
    {%- set asked = sql if rows is none else "select * from (\n" ~ rows ~ "\n) as versions where (\n" ~ sql ~ "\n)" -%}
    {%- set fields = "spark.sql.debug.maxToStringFields" -%}
    {%- set before = run_query("set " ~ fields).columns[1].values()[0] -%}
    {%- do run_query("set " ~ fields ~ "=100000") -%}
    {%- set plan = run_query("explain extended " ~ asked).columns[0].values()[0] -%}
    {%- do run_query("set " ~ fields ~ "=" ~ before) -%}
    {%- set analyzed, found, rest = plan.partition("== Optimized Logical Plan ==") -%}
    {%- set analyzed = analyzed.partition("== Analyzed Logical Plan ==")[2].strip() -%}
    {%- if not analyzed or "== Physical Plan ==" not in rest or modules.re.match("[\\w.]+Exception\\b", analyzed) -%}
        {{ return(none) }}
    {%- endif -%}
    {{ return({"analyzed": analyzed, "optimized": rest.partition("== Physical Plan ==")[0]}) }}
{%- endmacro %}
