{% macro proof_of_table(tested, covered, tables, said, compared=false) -%}
    {#-
        What a test of a deduped_ table has to ask; see proof_of(). `tables` are those of its watermark, {name, head}.
        Once proved, such a table stays right where no new batch touches a key, as long as only its own merges
        write to it. With `compared`, the test compares all columns: adds to the watermark those of the SELECT
        (`selected`) and of the table (`stored`), and whether the table `lacks` one, for instance one that raw has gained since.
    -#}
    {%- for table in tables -%}
        {%- set schema, dot, identifier = table.name.rpartition(".") -%}
        {%- do table.update({"relation": strandline.exactly(schema, identifier) if dot else none}) -%}
    {%- endfor -%}
    {%- if compared and covered.exact and covered.current -%}
        {%- set selected = strandline.query_types(covered.select) -%}
        {%- set stored = strandline.query_types("select * from " ~ strandline.as_covered(tested, covered)) -%}
        {%- do covered.update({
            "selected": selected,
            "stored": stored,
            "lacks": selected | list | reject("in", stored) | list | length > 0,
        }) -%}
    {%- endif -%}
    {{ return(strandline.proof_of(tested, tables, said, dict(covered, name=tested | string))) }}
{%- endmacro %}


{% macro covered_tables(covered) -%}
    {#- The raw tables of a watermark and the batches up to which they are covered: [{name, head}]. -#}
    {%- set tables = [] -%}
    {%- for name in covered.get("raw") or [""] -%}
        {%- do tables.append({"name": name, "head": covered.said.get(name, 0)}) -%}
    {%- endfor -%}
    {{ return(tables) }}
{%- endmacro %}


{% macro as_covered(relation, covered) -%}
    {#- The table as it was when its watermark was read. -#}
    {{ return(relation ~ " version as of " ~ covered.current) }}
{%- endmacro %}


{% macro touched_keys(relation, covered, proof, in_raw=true) -%}
    {#- The keys of a deduped_ table that a proof has to ask about: `in_raw`, and in the table itself. -#}
    {%- if in_raw %}
    select {{ strandline.key_list(covered.primary_key) }}
    from (
        {{ covered.select }}
    ) as versions
    where {{ strandline.asked(proof) }}
        and {{ strandline.of_batches(proof.tables, up_to="head") }}
    union
    {%- endif %}
    select {{ strandline.key_list(covered.primary_key) }}
    from {{ strandline.as_covered(relation, covered) }} as stored
    where {{ strandline.asked(proof, of_table=true) }}
{%- endmacro %}


{% macro few_asked(proof) -%}
    {#-
        Whether a table has so few rows that a proof has to ask about that the hashes of their keys can be sent to every
        executor: no more than raw has in those batches. Iceberg cannot tell, because a file of the table has rows of
        many batches, and Spark would sort all keys.
    -#}
    {%- set asked = namespace(rows=0) -%}
    {%- for table in proof.tables -%}
        {%- set rows = strandline.rows_told(table, table.again_low, table.again_high) -%}
        {%- for batch, told in rows.items() if batch > table.proved_to
            or batch > table.again_low and batch <= table.again_high -%}
            {%- set asked.rows = asked.rows + told -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(asked.rows <= 1000000) }}
{%- endmacro %}
