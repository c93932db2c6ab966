{% macro proof_of_table(tested, covered, tables, said, compared=false) -%}
    {#-
        What a test of a deduped_ table has to ask; see proof_of(). `tables` are those of its watermark, {name, head}.
        Once proved, such a table stays right where no new batch touches a key, as long as only its own merges
        write to it. With `compared`, the test compares all columns: adds to the watermark those of the SELECT
        (`selected`), and whether the table `lacks` one, for instance one that raw has gained since.
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


{% macro touched_keys(relation, covered, proof) -%}
    {#- The keys of a deduped_ table that a proof has to ask about: in raw, and in the table itself. -#}
    select {{ strandline.key_list(covered.primary_key) }}
    from (
        {{ covered.select }}
    ) as versions
    where {{ strandline.asked(proof) }}
        and {{ strandline.of_batches(proof.tables, up_to="head") }}
    union
    select {{ strandline.key_list(covered.primary_key) }}
    from {{ strandline.as_covered(relation, covered) }} as stored
    where {{ strandline.asked(proof, of_table=true) }}
{%- endmacro %}


{% macro unproved_differences(relation, covered, goal, proof, up_to) -%}
    {#-
        What differences() returns, for what a proof has to ask about. By key: of all versions of the touched keys,
        only key, order and row hash are read, which say whether the table shows the right version. By row: rows of
        new batches, and of those that are proved again, are compared in all columns. An older row was, when
        its batch was new, and only a merge writes to the table.
    -#}
    {%- set selected = covered.selected -%}
    {%- set many = goal.tables | length > 1 -%}
    {%- set named = (goal.primary_key + ([goal.cursor_field] if goal.cursor_field else [])) | map("lower") | list -%}
    {%- set narrow = [] -%}
    {%- set payload = [] -%}
    {%- for name, column in selected.items() -%}
        {%- do (narrow if name in named or name.startswith("_cq_") else payload).append(column) -%}
    {%- endfor -%}
    {%- set read = (selected.values() | list if goal.row_filter else narrow) | map(attribute="name") | list -%}
    {%- set versions -%}
        select
            {%- for name in read %}
            versions.{{ strandline.quoted(name) }}{{ "," if not loop.last }}
            {%- endfor %}
        from (
            {{ covered.select }}
        ) as versions
        left semi join touched
            on {{ strandline.same_key(goal.primary_key, "versions", "touched") }}
    {%- endset -%}
    {%- set compared = narrow | list -%}
    {%- for name in goal.kind.added_columns -%}
        {%- do compared.append({"name": name, "type": "string"}) -%}
    {%- endfor -%}
    {%- set identity = strandline.row_identity(goal) -%}
    {%- set place = ["_cq_batch", "_cq_seq"] + (["_cq_table"] if many else []) -%}
    {%- set found = ["up_to", "problem", "expected_batch", "expected_seq", "actual_batch", "actual_seq", "differing_columns"] -%}
    with touched as (
        {{ strandline.touched_keys(relation, covered, proof) }}
    )

    select
        {{ strandline.key_list(identity) }},
        {{ found | join(", ") }}
    from (
        {{ strandline.differing_rows(
            "(\n" ~ goal.kind.select(versions, dict(goal, columns=read)) ~ "\n)",
            "(\nselect stored.* from " ~ strandline.as_covered(relation, covered) ~ " as stored left semi join touched on "
                ~ strandline.same_key(goal.primary_key, "stored", "touched") ~ "\n)",
            identity,
            compared,
            up_to
        ) }}
    ) as by_key
    {%- if payload %}
    union all
    select
        {{ strandline.key_list(identity) }},
        {{ found | join(", ") }}
    from (
        {{ strandline.differing_rows(
            "(\nselect * from (\n" ~ covered.select ~ "\n) as versions where " ~ strandline.asked(proof) ~ " and "
                ~ strandline.of_batches(proof.tables, up_to="head") ~ "\n)",
            "(\nselect * from " ~ strandline.as_covered(relation, covered) ~ " as stored where "
                ~ strandline.asked(proof) ~ "\n)",
            goal.primary_key + place,
            payload + [{"name": "_cq_batch", "type": "bigint"}, {"name": "_cq_seq", "type": "bigint"}],
            up_to
        ) }}
    ) as by_row
    {#- Versions that the table no longer shows, and rows that it should not show, are found by key. #}
    where problem = 'differs from what the raw table says'
    {%- endif %}
{%- endmacro %}
