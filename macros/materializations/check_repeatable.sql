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
        written there; none if nothing does. Not if it is the name of one of the columns. `rows`: the SELECT that an
        expression is a condition on; none if the text is a SELECT itself.
    -#}
    {%- set code = modules.re.sub("`[^`]*`(?!\\s*\\()", " ", strandline.code_of(sql)).replace("`", "") | lower -%}
    {%- set functions = ["current_(?:catalog|database|schema|date|time|timestamp|timezone|user)", "localtimestamp",
        "session_user", "now", "curdate", "user", "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "reflect",
        "java_method", "aes_encrypt", "monotonically_increasing_id", "input_file_\\w+", "spark_partition_id"] -%}
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
    {%- set plain = columns | map("lower") | list -%}
    {%- set any = "(?:" ~ words | join("|") ~ ")\\b" -%}
    {%- set bare = modules.re.findall("(?<![\\w.])(?<!\\bas )" ~ any ~ "(?!\\s*\\()", code) | reject("in", plain) | list -%}
    {#- After a dot or in backticks they may be anything; the plan tells. -#}
    {%- set named = modules.re.findall("\\b" ~ any, strandline.code_of(sql) | lower) | reject("in", plain) | list -%}
    {%- set plan = strandline.planned(sql, rows) if named else none -%}
    {%- set seen = plan.analyzed if plan is not none else none -%}
    {%- for word in bare + named if (modules.re.search(words[word], seen) if seen is not none else word in bare) -%}
        {{ return(word) }}
    {%- endfor -%}
    {{ return(strandline.text_taken_for_a_time(sql, rows)) }}
{%- endmacro %}


{% macro planned(sql, rows=none) -%}
    {#-
        Spark's plans of a SELECT, or of one with a condition on `rows`: {analyzed, optimized}, with every field. none if
        Spark cannot resolve it, as it may be with the text of a view, or if the plan has not the form of Spark's own.
    -#}
    {%- set asked = sql if rows is none else "select * from (\n" ~ rows ~ "\n) as versions where (\n" ~ sql ~ "\n)" -%}
    {#- For good: models that are built meanwhile share the session, and may plan just then. -#}
    {%- do run_query("set spark.sql.debug.maxToStringFields=100000") -%}
    {%- set plan = run_query("explain extended " ~ asked).columns[0].values()[0] -%}
    {%- set analyzed, found, rest = plan.partition("== Optimized Logical Plan ==") -%}
    {%- set analyzed = analyzed.partition("== Analyzed Logical Plan ==")[2].strip() -%}
    {%- if not analyzed or "== Physical Plan ==" not in rest or modules.re.match("[\\w.]+Exception\\b", analyzed) -%}
        {{ return(none) }}
    {%- endif -%}
    {{ return({"analyzed": analyzed, "optimized": rest.partition("== Physical Plan ==")[0]}) }}
{%- endmacro %}
