{% macro nothing_asked(proof) -%}
    {#-
        Whether a proof has nothing to ask: no batch is new, none is proved again, and the tested table, if a
        deduped_ materialization built it, is the one that was proved.
    -#}
    {%- if proof.whole or not proof.same_table or not strandline.may_glance(proof) -%}
        {{ return(false) }}
    {%- endif -%}
    {%- for table in proof.tables if table.head > table.proved_to or table.again_high > table.again_low -%}
        {{ return(false) }}
    {%- endfor -%}
    {{ return(true) }}
{%- endmacro %}


{% macro may_glance(proof) -%}
    {#-
        Whether a test that has nothing to report may say so by a SELECT without rows, in place of its own: only the
        number of rows counts then. A table of failures would have the wrong columns.
    -#}
    {{ return(proof.note != "" and not should_store_failures()) }}
{%- endmacro %}


{% macro may_look(tested) -%}
    {#- The same for a test without a proof: what it asks does not depend on what was proved before. -#}
    {{ return(strandline.may_follow(tested) and not should_store_failures()) }}
{%- endmacro %}


{% macro no_rows_in(select_sql) -%}
    {#- Whether a SELECT returns no row. -#}
    {%- set rows = run_query("select count(*) from (\n" ~ select_sql ~ "\n) as found").columns[0].values()[0] -%}
    {{ return(rows | int == 0) }}
{%- endmacro %}


{% macro versions_in_order(proof, rows, keys, cursor) -%}
    {#-
        Whether one look shows that no test which compares the versions of a key finds anything in what a proof asks:
        within a key, each version has a higher cursor than the one that arrived before it, or the same in a higher
        generation. So no two have the same cursor and generation, and no cursor goes back. Otherwise, or if another
        test is looking right now, a test asks for itself, and its own rows decide.
    -#}
    {%- if strandline.nothing_asked(proof) -%}
        {{ return(true) }}
    {%- elif not keys or not cursor or not strandline.may_glance(proof) -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set known = strandline.remembered("versions in order") -%}
    {%- set name = [rows, proof.tables[0].snapshot, keys, cursor, "" if proof.whole else strandline.asked(proof)] | string -%}
    {%- if name not in known -%}
        {%- do known.update({name: false}) -%}
        {%- set order = "struct(" ~ strandline.quoted(cursor) ~ ", _cq_generation)" -%}
        {%- set hashed = not proof.whole and strandline.few_asked(proof) -%}
        {%- set disordered_sql -%}
            select count_if(not in_order)
            from (
                select {{ order }} > lag({{ order }}) over arrival as in_order
                from {{ strandline.asked_keys(proof, rows, keys, cursor, around=true, hashed=hashed) }} as versions
                window arrival as (
                    partition by {{ strandline.key_list(keys) }}
                    order by _cq_batch, _cq_seq
                )
            ) as compared
        {%- endset -%}
        {%- do known.update({name: run_query(disordered_sql).columns[0].values()[0] | int == 0}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro no_difference(proof, relation, covered, goal, differences_sql) -%}
    {#-
        Whether a table of a deduped_ materialization is as raw says, in what a proof asks: unique_key need not ask
        about it again.
    -#}
    {%- if strandline.nothing_asked(proof) -%}
        {{ return(true) }}
    {%- elif not strandline.may_glance(proof) -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set look = none if proof.whole else strandline.latest_at_a_glance(relation, covered, goal, proof) -%}
    {%- set look = differences_sql if look is none else look -%}
    {%- set agrees = strandline.no_rows_in(look) -%}
    {%- do strandline.remembered("agreeing tables").update({strandline.asked_of(proof, relation, covered): agrees}) -%}
    {{ return(agrees) }}
{%- endmacro %}


{% macro found_no_difference(proof, relation, covered) -%}
    {#- Whether no_difference() has said so in this invocation. -#}
    {%- set known = strandline.remembered("agreeing tables") -%}
    {{ return(strandline.may_glance(proof) and known.get(strandline.asked_of(proof, relation, covered), false)) }}
{%- endmacro %}


{% macro asked_of(proof, relation, covered) -%}
    {#- What a proof asks of a deduped_ table, as a text to compare. -#}
    {%- set asked = "" if proof.whole else strandline.asked(proof, of_table=true) -%}
    {{ return([relation, covered.current, covered.said, proof.tables | map(attribute="head") | list, asked] | string) }}
{%- endmacro %}


{% macro cursors_told(proof, rows, cursor) -%}
    {#-
        What the tests of an invocation want to know of the cursors in the rows that a proof asks about: [{new, low,
        high, nulls, missing, ahead}], one entry for new batches and one for those that are proved again. `low` and
        `high` are numbers, none if the cursor's type has none; `missing` counts nulls in rows that are not
        tombstones, `ahead` cursors later than their sync.
    -#}
    {%- set known = strandline.remembered("cursors") -%}
    {%- set table = proof.tables[0] -%}
    {%- set condition = "true" if proof.whole else strandline.asked(proof) -%}
    {%- set name = [rows, table.get("snapshot"), cursor, condition] | string -%}
    {%- if name not in known -%}
        {%- set type = proof.types.get(cursor | lower) -%}
        {%- set column = strandline.quoted(cursor) -%}
        {%- set number = strandline.cursor_number(cursor, type).number or "null" -%}
        {%- set cursors_sql -%}
            select
                {{ "true" if proof.whole else "_cq_batch > " ~ table.proved_to }} as is_new,
                cast(min({{ number }}) as string),
                cast(max({{ number }}) as string),
                count_if({{ column }} is null),
                count_if({{ column }} is null and not coalesce(_cq_deleted, false)),
                {% if type in ("date", "timestamp", "timestamp_ntz") -%}
                count_if({{ strandline.dated_ahead(column, type) }})
                {%- else -%}
                0L
                {%- endif %}
            from {{ rows }} as asked
            where {{ condition }}
            group by is_new
        {%- endset -%}
        {%- set told = [] -%}
        {%- for row in run_query(cursors_sql) -%}
            {%- do told.append({
                "new": row[0], "low": row[1], "high": row[2], "nulls": row[3] | int, "missing": row[4] | int, "ahead": row[5] | int,
            }) -%}
        {%- endfor -%}
        {%- do known.update({name: told}) -%}
    {%- endif -%}
    {{ return(known[name]) }}
{%- endmacro %}


{% macro no_cursor_is(wrong, proof, rows, cursor) -%}
    {#- Whether none of the asked rows has a cursor that is `missing` or `ahead`; see cursors_told(). -#}
    {%- if strandline.nothing_asked(proof) -%}
        {{ return(true) }}
    {%- elif not strandline.may_glance(proof) -%}
        {{ return(false) }}
    {%- endif -%}
    {{ return(strandline.cursors_told(proof, rows, cursor) | sum(attribute=wrong) == 0) }}
{%- endmacro %}


{% macro cursor_number(cursor, type) -%}
    {#- A cursor as an integer, and how to write that integer as a literal of its type: {number, literal}. -#}
    {%- set column = strandline.quoted(cursor) -%}
    {{ return({
        "timestamp": {"number": "unix_micros(" ~ column ~ ")", "literal": "timestamp_micros(%s)"},
        "date": {"number": "unix_date(" ~ column ~ ")", "literal": "date_from_unix_date(%s)"},
        "int": {"number": column, "literal": "%s"},
        "bigint": {"number": column, "literal": "%s"},
    }.get(type, {"number": none, "literal": none})) }}
{%- endmacro %}
