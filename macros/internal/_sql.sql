{% macro _quote(name) -%}
    {{- return(adapter.dispatch("_quote", "strandline")(name)) -}}
{%- endmacro %}


{% macro default___quote(name) -%}
    {{- adapter.quote(name | replace('"', '""')) -}}
{%- endmacro %}


{% macro spark___quote(name) -%}
    {%- do strandline._check_substitution(name) -%}
    {{- "`" ~ (name | replace("`", "``")) ~ "`" -}}
{%- endmacro %}


{% macro _literal(text) -%}
    {{- return(adapter.dispatch("_literal", "strandline")(text | string)) -}}
{%- endmacro %}


{% macro default___literal(text) -%}
    {{- "'" ~ (text | replace("'", "''")) ~ "'" -}}
{%- endmacro %}


{% macro spark___literal(text) -%}
    {#- Escapes backslashes and quotes. Also escapes the dollar sign in `${`, because by default
        Spark replaces `${env:NAME}` in a literal. -#}
    {{- "'" ~ (text | replace("\\", "\\\\") | replace("'", "\\'") | replace("${", "\\u0024{"))
        ~ "'" -}}
{%- endmacro %}


{% macro _check_substitution(name) -%}
    {#- Rejects a name with `${` unless the session has disabled substitution. By default, Spark
        replaces `${env:NAME}` with an environment variable, even in a quoted name. -#}
    {%- if execute and "${" in name -%}
        {%- if strandline._setting("spark.sql.variable.substitute") | lower != "false" -%}
            {{ exceptions.raise_compiler_error(
                "The name '" ~ name ~ "' contains `${`, which this session replaces with a "
                ~ "variable of its environment. Set `spark.sql.variable.substitute: \"false\"` in "
                ~ "the target's server_side_parameters (profiles.yml), or rename it in the source."
            ) }}
        {%- endif -%}
    {%- endif -%}
{%- endmacro %}


{% macro _column_list(names) -%}
    {%- for name in names -%}
        {{ strandline._quote(name) }}{{ ", " if not loop.last }}
    {%- endfor -%}
{%- endmacro %}


{% macro _literal_list(texts) -%}
    {%- for text in texts -%}
        {{ strandline._literal(text) }}{{ ", " if not loop.last }}
    {%- endfor -%}
{%- endmacro %}


{% macro _same_key(key, left, right) -%}
    {#- Compares two keys null-safely, so that two nulls are equal. -#}
    {%- for name in key -%}
        {{ left }}.{{ strandline._quote(name) }} is not distinct
            from {{ right }}.{{ strandline._quote(name) }}
        {{- " and " if not loop.last -}}
    {%- endfor -%}
{%- endmacro %}


{% macro _key_bucket(key, buckets) -%}
    {#- Hashes the key as text in UTC, so that the bucket depends neither on the width of a number
        nor on the session's time zone. Equal keys must be in the same bucket: -0.0 equals 0.0, and a
        float equals the double to which it was widened. Spark simplifies the CASE before it reads
        rows, so only times are converted to JSON, which takes several times as long. -#}
    pmod(xxhash64(
        {%- for name in key %}
        {%- set column = strandline._quote(name) %}
        case
            when typeof({{ column }}) like '%timestamp%'
                then to_json(struct({{ column }}), map('timeZone', 'UTC'))
            when typeof({{ column }}) in ('float', 'double')
                then cast(abs(cast(cast({{ column }} as string) as float)) as string)
            when typeof({{ column }}) like '%<%'
                then replace(cast({{ column }} as string), '-0.0', '0.0')
            else cast({{ column }} as string)
        end{{ "," if not loop.last }}
        {%- endfor %}
    ), {{ buckets }})
{%- endmacro %}


{% macro _batches(tables, above=none, up_to=none) -%}
    {#- Returns the condition that `_cq_batch` is greater than `above` and at most `up_to`. Both
        arguments are keys of the entries of `tables`, such as "low" or "head". The batches are
        literals, so that Iceberg can skip raw files. -#}
    {%- set conditions = [] -%}
    {%- for table in tables -%}
        {%- set parts = [] -%}
        {%- if tables | length > 1 -%}
            {%- do parts.append("_cq_table = " ~ strandline._literal(table.name)) -%}
        {%- endif -%}
        {%- if above -%}
            {%- do parts.append("_cq_batch > " ~ table[above]) -%}
        {%- endif -%}
        {%- if up_to -%}
            {%- do parts.append("_cq_batch <= " ~ table[up_to]) -%}
        {%- endif -%}
        {#- Spark would simplify an empty range to a null filter, which causes an error in
            Iceberg. -#}
        {%- set empty = above and up_to and table[above] >= table[up_to] -%}
        {%- do conditions.append("false" if empty else parts | join(" and ")) -%}
    {%- endfor -%}
    {{ return("(" ~ conditions | join(" or ") ~ ")") }}
{%- endmacro %}


{% macro _run(sql) -%}
    {#- Runs a statement that returns no rows. run_query() is unsuitable, because over Thrift it
        fails if there are no rows to fetch. -#}
    {%- call statement("strandline_statement", fetch_result=false, auto_begin=false) -%}
        {{ sql }}
    {%- endcall -%}
{%- endmacro %}


{% macro _value(sql) -%}
    {#- Returns the first value of a query's first row. -#}
    {{ return(run_query(sql).columns[0].values()[0]) }}
{%- endmacro %}


{% macro _setting(name) -%}
    {#- Returns the value of a Spark session setting. -#}
    {{ return(run_query("set `" ~ name ~ "`").columns[1].values()[0]) }}
{%- endmacro %}


{% macro _literal_rows(columns, rows) -%}
    {#- Returns a SELECT of rows that are given as lists. `columns` maps the names of the columns to
        their types. -#}
    {%- set tuples = [] -%}
    {%- for row in rows or [[none] * columns | length] -%}
        {%- set values = [] -%}
        {%- for value in row -%}
            {%- do values.append("null" if value is none else value if value is number
                and value is not boolean else strandline._literal(value | string | lower
                if value is boolean else value)) -%}
        {%- endfor -%}
        {%- do tuples.append("(" ~ values | join(", ") ~ ")") -%}
    {%- endfor -%}
    select
        {%- for name, type in columns.items() %}
        cast({{ name }} as {{ dbt.type_string() if type == "string" else type }})
            as {{ name }}{{ "," if not loop.last }}
        {%- endfor %}
    from (
        values
        {{ tuples | join(",\n        ") }}
    ) as given ({{ columns | join(", ") }})
    {%- if not rows %}
    where false
    {%- endif %}
{%- endmacro %}


{% macro _or_no_rows(relation, columns) -%}
    {#- Returns the relation, or _no_rows() if it is missing. -#}
    {{ return(relation if not execute or not flags.EMPTY and strandline._exists(relation)
        else strandline._no_rows(columns)) }}
{%- endmacro %}


{% macro _no_rows(columns) -%}
    {#- Returns a SELECT without rows. `columns` are the names of its columns by type. -#}
    {%- set types = {} -%}
    {%- for type, names in columns.items() -%}
        {%- for name in names.split() -%}
            {%- do types.update({name: type}) -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return("(" ~ strandline._literal_rows(types, []) ~ ")") }}
{%- endmacro %}
