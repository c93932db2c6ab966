{% macro row_hash(raw) -%}
    {#-
        The loader's hash of a row, from the columns of raw; Python's twin is loader/rows/row_hash.py. A column is
        hashed with its name, a null is skipped, and types are cast so that their width does not count. So a row's
        hash stays the same when columns are added, dropped or widened. A variant column is hashed under the name
        of the column whose values it keeps.
    -#}
    {%- do strandline.check_name(raw | string) -%}
    {%- set own = ["_cq_source_name", "_cq_sync_time", "_cq_batch", "_cq_seq", "_cq_row_hash", "_cq_deleted", "_cq_generation"] -%}
    {%- set variants, scales = strandline.told_of_source(raw) -%}
    {%- set columns = [] -%}
    {%- for column in adapter.get_columns_in_relation(raw) if column.name | lower not in own -%}
        {%- set name = column.name | lower -%}
        {%- if "<" in column.dtype -%}
            {{ exceptions.raise_compiler_error(
                strandline.test_on(raw) ~ ": the column " ~ column.name ~ " is nested (" ~ column.dtype[:60] ~ "), and SQL "
                ~ "cannot compute the hash of such a row. Remove the test from this table: `loader reconcile` compares "
                ~ "its rows with the source."
            ) }}
        {%- endif -%}
        {%- for type in scales.get(name, []) if type != strandline.scale_of(column.dtype) -%}
            {{ exceptions.raise_compiler_error(
                strandline.test_on(raw) ~ ": the source has another scale in " ~ column.name ~ " than raw (" ~ column.dtype
                ~ "), so SQL cannot compute the hash of its rows. Remove the test from this table."
            ) }}
        {%- endfor -%}
        {%- do columns.append({
            "name": column.name,
            "said": name.rpartition("__")[0] if name in variants else name,
            "type": column.dtype,
        }) -%}
    {%- endfor -%}
    {%- set parts = [] -%}
    {%- for column in columns | sort(attribute="said", case_sensitive=true) -%}
        {%- set value = strandline.quoted(column.name) -%}
        {%- do parts.append("if(" ~ value ~ " is not null, " ~ strandline.text_literal(column.said) ~ ", null)") -%}
        {%- if column.type in ("int", "smallint", "tinyint") -%}
            {%- do parts.append("cast(" ~ value ~ " as bigint)") -%}
        {%- elif column.type == "float" -%}
            {%- do parts.append("cast(" ~ value ~ " as double)") -%}
        {%- elif column.type.startswith("decimal") -%}
            {%- do parts.append("cast(" ~ value ~ " as string)") -%}
        {%- else -%}
            {%- do parts.append(value) -%}
        {%- endif -%}
    {%- endfor -%}
    xxhash64({{ parts | join(", ") }})
{%- endmacro %}


{% macro told_of_source(raw) -%}
    {#-
        What a raw table's properties say about its sources: the variant columns, and the scale of each plain
        column, both with names in lower case.
    -#}
    {%- set variants = [] -%}
    {%- set scales = {} -%}
    {%- for property, text in strandline.table_properties(raw).items() if property.startswith("strandline.source_schema") -%}
        {%- set said = fromjson(text) -%}
        {%- for name in said.get("variants") or [] -%}
            {%- do variants.append(name | lower) -%}
        {%- endfor -%}
        {%- for column in said.get("columns") or [] if column.type is string -%}
            {%- do scales.setdefault(column.name | lower, []).append(strandline.scale_of(column.type)) -%}
        {%- endfor -%}
    {%- endfor -%}
    {#- Each value of a column with variants went to a column whose type has room, so none is stored with a wider scale. -#}
    {%- for name in variants -%}
        {%- do scales.pop(name.rpartition("__")[0], none) -%}
    {%- endfor -%}
    {{ return((variants, scales)) }}
{%- endmacro %}


{% macro scale_of(type) -%}
    {#- The scale of a decimal type; none for any other type. -#}
    {%- set decimal = modules.re.match("^decimal\\([0-9]+, *([0-9]+)\\)$", type) -%}
    {{ return(decimal.group(1) if decimal else none) }}
{%- endmacro %}
