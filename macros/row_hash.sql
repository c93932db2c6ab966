{% macro row_hash(relation) -%}
    {{- return(adapter.dispatch("row_hash", "strandline")(relation)) -}}
{%- endmacro %}


{% macro default__row_hash(relation) -%}
    {%- if execute and flags.WHICH not in ["compile", "generate"] -%}
        {{ exceptions.raise_compiler_error(
            "row_hash() computes Spark's xxhash64(), which " ~ target.type ~ " does not have. Run "
            ~ "it with a Spark target."
        ) }}
    {%- endif -%}
    null
{%- endmacro %}


{% macro spark__row_hash(relation) -%}
    {#- Computes the loader's hash of a row (loader/rows/row_hash.py). Each value is hashed with its
        column's name, nulls are skipped, and types are cast to a common width. Therefore the hash
        does not change if a column is added, dropped or widened. A type-specific column is hashed
        under the name of the column whose values it stores. -#}
    {%- set obstacle = strandline._hash_obstacle(relation) -%}
    {%- if obstacle -%}
        {{ exceptions.raise_compiler_error("row_hash(" ~ relation ~ "): " ~ obstacle) }}
    {%- endif -%}
    {%- set schema = strandline._source_schema(relation) -%}
    {%- set columns = [] -%}
    {%- for name, column in strandline._hashed_columns(relation).items() -%}
        {%- do columns.append({
            "name": column.name,
            "hashed_as": name.rpartition("__")[0] if name in schema.variants else name,
            "type": column.type,
        }) -%}
    {%- endfor -%}
    {%- set parts = [] -%}
    {%- for column in columns | sort(attribute="hashed_as", case_sensitive=true) -%}
        {%- set value = strandline._quote(column.name) -%}
        {%- do parts.append("if(" ~ value ~ " is not null, " ~ strandline._literal(column.hashed_as)
            ~ ", null)") -%}
        {%- set common = {"int": "bigint", "smallint": "bigint", "tinyint": "bigint",
            "float": "double", "decimal": "string"}.get(column.type.split("(")[0]) -%}
        {%- do parts.append("cast(" ~ value ~ " as " ~ common ~ ")" if common else value) -%}
    {%- endfor -%}
    xxhash64({{ parts | join(", ") }})
{%- endmacro %}


{% macro _hashed_columns(relation) -%}
    {%- set own = ["_cq_source_name", "_cq_sync_time", "_cq_batch", "_cq_seq", "_cq_row_hash",
        "_cq_deleted", "_cq_generation"] -%}
    {{ return(dict(strandline._columns(relation).items() | rejectattr("0", "in", own))) }}
{%- endmacro %}


{% macro _hash_obstacle(relation) -%}
    {#- Returns why SQL cannot compute the hash of a raw table's rows, or none if it can. -#}
    {%- set scales = strandline._source_schema(relation).scales -%}
    {%- for name, column in strandline._hashed_columns(relation).items() -%}
        {%- if "<" in column.type -%}
            {{ return(
                "the column " ~ column.name ~ " is nested (" ~ column.type[:60]
                ~ "), and SQL cannot compute the hash of "
                ~ "such a row. Remove the test from this table: `loader reconcile` compares its "
                ~ "rows with the source."
            ) }}
        {%- endif -%}
        {%- for scale in scales.get(name, []) if scale != strandline._scale(column.type) -%}
            {{ return(
                "the scale of " ~ column.name ~ " in the source differs from the raw table's ("
                ~ column.type ~ "), so SQL cannot compute "
                ~ "the hash of its rows. Remove the test from this table."
            ) }}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro _source_schema(relation) -%}
    {#- Returns facts about the sources from a raw table's properties: {variants, scales}. Column
        names are in lower case. -#}
    {%- set variants = [] -%}
    {%- set scales = {} -%}
    {%- for property, text in strandline._properties(relation).items()
        if property.startswith("strandline.source_schema") -%}
        {%- set recorded = fromjson(text) -%}
        {%- do variants.extend((recorded.get("variants") or []) | map("lower")) -%}
        {%- for column in recorded.get("columns") or [] if column.type is string -%}
            {%- set name = column.name | lower -%}
            {%- do scales.update({name: scales.get(name, []) + [
                strandline._scale(column.type)]}) -%}
        {%- endfor -%}
    {%- endfor -%}
    {#- Values with a larger scale are in the type-specific column, so no check is needed. -#}
    {%- for name in variants -%}
        {%- do scales.pop(name.rpartition("__")[0], none) -%}
    {%- endfor -%}
    {{ return({"variants": variants, "scales": scales}) }}
{%- endmacro %}


{% macro _scale(type) -%}
    {#- Returns the scale of a decimal type, or none for other types. -#}
    {{ return(type.split(",")[1] | trim | replace(")", "") if type.startswith("decimal(")
        else none) }}
{%- endmacro %}
