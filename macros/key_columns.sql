{% macro key_columns(primary_key, owner) -%}
    {%- set names = [primary_key] if primary_key is string else (primary_key or []) | list -%}
    {%- if not names -%}
        {{ exceptions.raise_compiler_error(
            owner ~ " needs a primary_key: the column or list of columns that identifies a row. "
            ~ "Set primary_key='id' or primary_key=['order_id', 'line_no']. "
            ~ "A table without a key has no latest version: read its raw table instead."
        ) }}
    {%- endif -%}
    {{ return(names) }}
{%- endmacro %}


{% macro check_columns(names, existing, owner, role) -%}
    {%- set known = existing | map("lower") | list -%}
    {%- for name in names if name | lower not in known -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ role ~ " column '" ~ name ~ "' is not among the columns it reads ("
            ~ existing | join(", ") ~ "). Correct " ~ role ~ ", or select the column."
        ) }}
    {%- endfor -%}
{%- endmacro %}


{% macro key_list(primary_key, alias=none) -%}
    {#- The columns of a key, for a SELECT or a GROUP BY. -#}
    {%- for key in primary_key -%}
        {{ alias ~ "." if alias }}{{ strandline.quoted(key) }}{{ ", " if not loop.last }}
    {%- endfor -%}
{%- endmacro %}


{% macro key_hash(primary_key, alias=none, types=none) -%}
    {#-
        A number that keys can be joined by where another key with the same hash does no harm: Spark looks up numbers
        several times as fast as values that may be null. A value hashes otherwise in another type: with `types`, columns
        by their names in lower case, a key is hashed as it is in these.
    -#}
    xxhash64(
        {%- for key in primary_key -%}
            {%- set name = (alias ~ "." if alias else "") ~ strandline.quoted(key) -%}
            {{ "cast(" ~ name ~ " as " ~ strandline.quoted_type(types[key | lower].type) ~ ")" if types else name }}
            {{- ", " if not loop.last }}
        {%- endfor -%}
    )
{%- endmacro %}
