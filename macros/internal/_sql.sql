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
                "The name '" ~ name ~ "' contains `${`, which this session replaces by a variable "
                ~ "of its environment. Set `spark.sql.variable.substitute: \"false\"` in the "
                ~ "target's server_side_parameters (profiles.yml), or rename it in the source."
            ) }}
        {%- endif -%}
    {%- endif -%}
{%- endmacro %}


{% macro _column_list(names, alias=none) -%}
    {%- for name in names -%}
        {{ alias ~ "." if alias }}{{ strandline._quote(name) }}{{ ", " if not loop.last }}
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
    {{- return(adapter.dispatch("_key_bucket", "strandline")(key, buckets)) -}}
{%- endmacro %}


{% macro default___key_bucket(key, buckets) -%}
    mod(hash({{ strandline._column_list(key) }}), {{ buckets }})
{%- endmacro %}


{% macro spark___key_bucket(key, buckets) -%}
    {#- Hashes the key as text in UTC, so that the bucket depends neither on the width of an integer
        nor on the session's time zone. -#}
    pmod(xxhash64(to_json(
        struct({{ strandline._column_list(
            key) }}), map('timeZone', 'UTC', 'ignoreNullFields', 'false')
    )), {{ buckets }})
{%- endmacro %}


{% macro _batches(tables, above=none, up_to=none, alias=none) -%}
    {#- Returns the condition that `_cq_batch` is greater than `above` and at most `up_to`. Both
        arguments are keys of the entries of `tables`, such as "low" or "head". The batches are
        literals, so that Iceberg can skip raw files. -#}
    {%- set prefix = alias ~ "." if alias else "" -%}
    {%- set conditions = [] -%}
    {%- for table in tables -%}
        {%- set parts = [] -%}
        {%- if tables | length > 1 -%}
            {%- do parts.append(prefix ~ "_cq_table = " ~ strandline._literal(table.name)) -%}
        {%- endif -%}
        {%- if above -%}
            {%- do parts.append(prefix ~ "_cq_batch > " ~ table[above]) -%}
        {%- endif -%}
        {%- if up_to -%}
            {%- do parts.append(prefix ~ "_cq_batch <= " ~ table[up_to]) -%}
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


{% macro _or_no_rows(relation, columns) -%}
    {#- Returns the relation, or a SELECT without rows if it is missing. `columns` are the names of
        its columns by type. -#}
    {%- if not execute or not flags.EMPTY and strandline._exists(relation) -%}
        {{ return(relation) }}
    {%- endif -%}
    {%- set selected = [] -%}
    {%- for type, names in columns.items() -%}
        {%- for name in names.split() -%}
            {%- do selected.append("cast(null as " ~ (dbt.type_string() if type == "string"
                else type) ~ ") as " ~ name) -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return("(select " ~ selected | join(", ") ~ " where false)") }}
{%- endmacro %}
