{% macro asked(proof, alias=none, of_table=false) -%}
    {#-
        The condition that a proof has to ask about a version: it came after the floor, or its batch is proved
        again this time. With `of_table`, for a row of the tested table, also that its batch is none that raw can
        have. Literals, so that Iceberg can prune files.
    -#}
    {%- set conditions = [strandline.of_batches(proof.tables, above="proved_to", alias=alias)] -%}
    {%- if proof.tables | selectattr("again_high") | list -%}
        {%- do conditions.append(strandline.of_batches(proof.tables, above="again_low", up_to="again_high", alias=alias)) -%}
    {%- endif -%}
    {%- if of_table -%}
        {%- set prefix = alias ~ "." if alias else "" -%}
        {%- do conditions.append(prefix ~ "_cq_batch is null or " ~ prefix ~ "_cq_batch < 1") -%}
        {%- if proof.tables | length > 1 -%}
            {%- set names = [] -%}
            {%- for table in proof.tables -%}
                {%- do names.append(strandline.text_literal(table.name)) -%}
            {%- endfor -%}
            {%- do conditions.append(
                "not coalesce(" ~ prefix ~ "_cq_table in (" ~ names | join(", ") ~ "), false)"
            ) -%}
        {%- endif -%}
    {%- endif -%}
    {{ return("(" ~ conditions | join(" or ") ~ ")") }}
{%- endmacro %}


{% macro asked_rows(proof, rows) -%}
    {#- Of a raw table's rows, those that a proof of single rows has to ask about; all if it is whole. -#}
    {%- if proof.whole -%}
        {{ return(rows) }}
    {%- endif -%}
    {{ return("(select * from " ~ rows ~ " as versions where " ~ strandline.asked(proof) ~ ")") }}
{%- endmacro %}


{% macro asked_keys(proof, rows, keys, cursor=none, lower=false) -%}
    {#-
        Of a raw table's rows, those that a proof which compares the versions of a key has to ask about: all
        versions of the keys of the asked rows, by their hash if there is no key. If only versions with the same
        cursor are compared, or with `lower`, only with lower ones, those with other cursors are left out as far as
        Iceberg can prune them.
    -#}
    {%- if proof.whole -%}
        {{ return(rows) }}
    {%- endif -%}
    {%- set by = keys or ["_cq_row_hash"] -%}
    {%- set within = strandline.cursor_ranges(proof, rows, cursor, lower) if keys and cursor else none -%}
    (
        select versions.*
        from {{ rows }} as versions
        left semi join (
            select {{ strandline.key_list(by) }}
            from {{ rows }} as asked
            where {{ strandline.asked(proof) }}
        ) as touched
            on {{ strandline.same_key(by, "versions", "touched") }}
        {%- if within is not none %}
        where {{ within }}
        {%- endif %}
    )
{%- endmacro %}


{% macro cursor_ranges(proof, rows, cursor, lower) -%}
    {#-
        The condition that a row's cursor is in the range of the new rows, or of those that are proved again; with
        `lower`, at or above the lowest of them, as earlier versions with higher cursors count. none if the
        cursor's type has no numbers to write as literals.
    -#}
    {%- set type = proof.types.get(cursor | lower) -%}
    {%- set column = strandline.quoted(cursor) -%}
    {%- set number, literal = {
        "timestamp": ("unix_micros(" ~ column ~ ")", "timestamp_micros(%s)"),
        "date": ("unix_date(" ~ column ~ ")", "date_from_unix_date(%s)"),
        "int": (column, "%s"),
        "bigint": (column, "%s"),
    }.get(type, (none, none)) -%}
    {%- if number is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set table = proof.tables[0] -%}
    {%- set ranges_sql -%}
        select
            _cq_batch > {{ table.proved_to }},
            cast(min({{ number }}) as string),
            cast(max({{ number }}) as string),
            count_if({{ column }} is null)
        from {{ rows }} as asked
        where {{ strandline.asked(proof) }}
        group by 1
    {%- endset -%}
    {%- set conditions = [] -%}
    {%- for row in run_query(ranges_sql) -%}
        {%- if row[1] is not none and lower -%}
            {%- do conditions.append(
                "(" ~ column ~ " >= " ~ literal % row[1]
                ~ ("" if row[0] else " and _cq_batch <= " ~ table.again_high) ~ ")"
            ) -%}
        {%- elif row[1] is not none -%}
            {%- do conditions.append(
                "(" ~ column ~ " >= " ~ literal % row[1] ~ " and " ~ column ~ " <= " ~ literal % row[2] ~ ")"
            ) -%}
        {%- endif -%}
        {%- if row[3] | int and not lower -%}
            {%- do conditions.append(column ~ " is null") -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return("(" ~ (conditions | unique | join(" or ") or "false") ~ ")") }}
{%- endmacro %}
