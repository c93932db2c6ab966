{% macro text_taken_for_a_time(sql, rows) -%}
    {#-
        A text in an SQL text, such as 'today' or a time without its day, if Spark takes it for a time where it stands;
        none if it is no more than a text. Spark computes such a time while it plans. So it plans the SELECT with
        something in the text's place that it cannot compute: then the cast to a time is still in the plan.
    -#}
    {%- set clock = "T?\\d{1,2}:\\d{1,2}(?:[^\\d'\"][^'\"]*)?" -%}
    {%- set text = "(['\"])\\s*(?:(?:now|today|yesterday|tomorrow)(?:[^\\w'\"][^'\"]*)?|" ~ clock ~ ")\\1" -%}
    {%- set written = strandline.as_written(sql) -%}
    {#- Of VALUES, a plan does not show the rows. -#}
    {%- set typed = modules.re.search("(?i)\\b(?:date|timestamp(?:_ntz|_ltz)?)\\s*r?" ~ text, written) -%}
    {%- if typed or not modules.re.search("(?i)" ~ text, written) -%}
        {{ return(typed.group(0) if typed else none) }}
    {%- endif -%}
    {%- set tokens = modules.re.findall(
        "`[^`]*`|\\b[rR](?:'[^']*'|\"[^\"]*\")|'(?:\\\\.|[^'\\\\])*'|\"(?:\\\\.|[^\"\\\\])*\"|--[^\\n]*|"
        ~ strandline.comment_pattern() ~ "|\\w+|.",
        sql,
        flags=modules.re.DOTALL
    ) -%}
    {%- set places = [] -%}
    {%- for token in tokens -%}
        {#- The text of an interval is a part of the literal. -#}
        {%- set before = tokens[:loop.index0] | join if modules.re.fullmatch("(?i)r?" ~ text, token) else "interval " -%}
        {%- do places.append(loop.index0) if not modules.re.search("(?i)\\binterval\\s*[-+]?\\s*$", before) -%}
    {%- endfor -%}
    {%- set together = strandline.cast_to_times(tokens, places, rows) if places else [] -%}
    {%- if together is not none -%}
        {{ return(tokens[together[0]] if together else none) }}
    {%- endif -%}
    {%- for place in places -%}
        {%- set alone = strandline.cast_to_times(tokens, [place], rows) -%}
        {#- Where Spark wants no expression, such as in the schema of from_json(). -#}
        {%- if alone or alone is none and strandline.differs_by_time(tokens, place, rows) -%}
            {{ return(tokens[place]) }}
        {%- endif -%}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro cast_to_times(tokens, places, rows) -%}
    {#-
        The places of an SQL text's tokens whose text Spark casts to a date or a time; none if it does not plan the text
        with expressions there. raise_error() is an expression that Spark does not compute while it plans.
    -#}
    {%- set parts = [] -%}
    {%- for token in tokens -%}
        {%- set place = loop.index0 -%}
        {%- do parts.append("cast(raise_error('_cq_text_" ~ place ~ "') as string)" if place in places else token) -%}
    {%- endfor -%}
    {%- set plan = strandline.planned(parts | join, rows) -%}
    {%- if plan is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set marked = "_cq_text_\\d+\\b" -%}
    {%- set expression = "cast\\(raise_error\\((" ~ marked ~ "), \\w+\\) as string\\)" -%}
    {%- set seen = namespace(text=modules.re.sub(expression, "\\1", plan.optimized), before="", cast=[]) -%}
    {#- What is computed from such texts and constants alone is one of them, too; a column has a `#` in its name. -#}
    {%- for depth in range(50) if seen.text != seen.before -%}
        {%- set seen.before = seen.text -%}
        {%- set cast = "cast\\(_cq_text_(\\d+) as (?:date|timestamp|timestamp_ntz)\\)" -%}
        {%- do seen.cast.extend(modules.re.findall(cast, seen.text)) -%}
        {%- set seen.text = modules.re.sub("\\w*\\([^()#]*?(" ~ marked ~ ")[^()#]*\\)", "\\1", seen.text) -%}
        {%- set seen.text = modules.re.sub("\\w+\\((?:(?!" ~ marked ~ ")[^()#])*\\)", "_", seen.text) -%}
        {#- So is what one of them may be, whatever decides: a branch, or what stands in for a null. -#}
        {%- set branch = "\\bCASE WHEN (?:(?!\\b(?:CASE|END)\\b).)*?\\b(?:THEN|ELSE) (" ~ marked ~ ")(?:(?!\\b(?:CASE|END)\\b).)*?\\bEND\\b" -%}
        {%- set seen.text = modules.re.sub(branch, "\\1", seen.text) -%}
        {%- set simple = "(?:[^\\s,()]+|\\w*\\([^()]*\\))" -%}
        {%- set either = "\\bif \\([^()]*(?:\\([^()]*\\)[^()]*)*\\) " -%}
        {%- set seen.text = modules.re.sub(either ~ "(" ~ marked ~ ") else " ~ simple, "\\1", seen.text) -%}
        {%- set seen.text = modules.re.sub(either ~ simple ~ " else (" ~ marked ~ ")", "\\1", seen.text) -%}
        {%- set seen.text = modules.re.sub("\\b(?:coalesce|nvl|ifnull)\\([^()]*?(" ~ marked ~ ")[^()]*\\)", "\\1", seen.text) -%}
    {%- endfor -%}
    {{ return(seen.cast | map("int") | list) }}
{%- endmacro %}


{% macro differs_by_time(tokens, place, rows) -%}
    {#-
        Whether Spark's plan of an SQL text depends on the time that stands at a place, written as Spark does not write
        times. Without a plan, the words around it have to tell.
    -#}
    {%- set words = [] -%}
    {%- for time in ["+0871-2-3 4:5:6", "+1999-7-8 1:2:3"] -%}
        {%- set plan = strandline.planned(tokens[:place] | join ~ "'" ~ time ~ "'" ~ tokens[place + 1:] | join, rows) -%}
        {%- if plan is not none -%}
            {#- Not by their order, in which Spark lists the texts of `in`, and without the names, which it numbers. -#}
            {%- set named = "\\w*#\\d+|cterelation\\w+ \\d+|[+]0871-2-3 4:5:6|[+]1999-7-8 1:2:3" -%}
            {%- do words.append(modules.re.findall("\\w+", modules.re.sub(named, " ", plan.optimized | lower)) | sort) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if words | length == 2 -%}
        {{ return(words[0] != words[1]) }}
    {%- endif -%}
    {%- set before = strandline.as_written(tokens[:place] | join) -%}
    {{ return(modules.re.search(
        "(?i)(?:\\b(?:cast|try_cast|date|timestamp|to_date|(?:try_)?to_timestamp\\w*)\\s*\\(\\s*"
        ~ "|<(?!=?>)=?\\s*|(?<![<=])>=?\\s*|\\bbetween\\s*)$",
        before
    ) is not none) }}
{%- endmacro %}
