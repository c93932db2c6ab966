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


{% macro asked_keys(proof, rows, keys, cursor=none, lower=false, around=false, hashed=false) -%}
    {#-
        Of a raw table's rows, those that a proof which compares the versions of a key has to ask about: all
        versions of the keys of the asked rows, by their hash if there is no key. If only versions with the same
        cursor are compared, or with `lower`, only with lower ones, or `around`, with either, those with other cursors
        are left out as far as Iceberg can prune them. If `hashed`, keys that have the same hash are among them, too.
    -#}
    {%- if proof.whole -%}
        {{ return(rows) }}
    {%- endif -%}
    {%- set by = keys or ["_cq_row_hash"] -%}
    {%- set within = [] -%}
    {%- for those in [false, true] if keys and cursor and (around or those == lower) -%}
        {%- do within.append(strandline.cursor_ranges(proof, rows, cursor, those)) -%}
    {%- endfor -%}
    (
        select {{ "/*+ broadcast(touched) */ " if hashed }}versions.*
        from {{ rows }} as versions
        left semi join (
            select {{ strandline.key_hash(by) ~ " as key_hash" if hashed else strandline.key_list(by) }}
            from {{ rows }} as asked
            where {{ strandline.asked(proof) }}
        ) as touched
            {%- if hashed %}
            on {{ strandline.key_hash(by, "versions") }} = touched.key_hash
            {%- else %}
            on {{ strandline.same_key(by, "versions", "touched") }}
            {%- endif %}
        {%- if within and within | select("none") | list == [] %}
        where {{ within | join(" or ") }}
        {%- endif %}
    )
{%- endmacro %}


{% macro cursor_ranges(proof, rows, cursor, lower) -%}
    {#-
        The condition that a row's cursor is in the range of the new rows, or of those that are proved again; with
        `lower`, at or above the lowest of them, as earlier versions with higher cursors count. none if the
        cursor's type has no numbers to write as literals.
    -#}
    {%- set literal = strandline.cursor_number(cursor, proof.types.get(cursor | lower)).literal -%}
    {%- if literal is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set column = strandline.quoted(cursor) -%}
    {%- set conditions = [] -%}
    {%- for told in strandline.cursors_told(proof, rows, cursor) -%}
        {%- if told.low is not none and lower -%}
            {%- do conditions.append(
                "(" ~ column ~ " >= " ~ literal % told.low
                ~ ("" if told.new else " and _cq_batch <= " ~ proof.tables[0].again_high) ~ ")"
            ) -%}
        {%- elif told.low is not none -%}
            {%- do conditions.append(
                "(" ~ column ~ " >= " ~ literal % told.low ~ " and " ~ column ~ " <= " ~ literal % told.high ~ ")"
            ) -%}
        {%- endif -%}
        {%- if told.nulls and not lower -%}
            {%- do conditions.append(column ~ " is null") -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return("(" ~ (conditions | unique | join(" or ") or "false") ~ ")") }}
{%- endmacro %}
