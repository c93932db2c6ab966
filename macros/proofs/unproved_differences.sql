{% macro unproved_differences(relation, covered, goal, proof, up_to) -%}
    {#-
        What differences() returns, for what a proof has to ask about. By key: key, order and row hash say whether the
        table shows the right version of each touched key. By row: rows of new batches, and of those that are
        proved again, are compared in all columns. An older row was, when its batch was new, and only a merge
        writes to the table.
    -#}
    {%- set selected = covered.selected -%}
    {%- set many = goal.tables | length > 1 -%}
    {%- set named = (goal.primary_key + ([goal.cursor_field] if goal.cursor_field else [])) | map("lower") | list -%}
    {%- set narrow = [] -%}
    {%- set payload = [] -%}
    {%- for name, column in selected.items() -%}
        {%- do (narrow if name in named or name.startswith("_cq_") else payload).append(column) -%}
    {%- endfor -%}
    {%- set before = strandline.proved_before(relation, covered, goal, proof) -%}
    {%- set read = (selected.values() | list if goal.row_filter else narrow) | map(attribute="name") | list -%}
    {%- set versions -%}
        {%- if before is none -%}
        {{ strandline.versions_of_touched(covered, goal, read) }}
        {%- else -%}
        {{ strandline.versions_since(relation, before, covered, goal, proof, read) }}
        {%- endif -%}
    {%- endset -%}
    {%- set compared = narrow | list -%}
    {%- for name in goal.kind.added_columns -%}
        {%- do compared.append({"name": name, "type": "string"}) -%}
    {%- endfor -%}
    {%- set identity = strandline.row_identity(goal) -%}
    {%- set place = ["_cq_batch", "_cq_seq"] + (["_cq_table"] if many else []) -%}
    {%- set found = ["up_to", "problem", "expected_batch", "expected_seq", "actual_batch", "actual_seq", "differing_columns"] -%}
    with _cq_touched as (
        {{ strandline.touched_keys(relation, covered, proof) }}
    )

    select
        {{ strandline.key_list(identity) }},
        {{ found | join(", ") }}
    from (
        {{ strandline.differing_rows(
            "(\n" ~ goal.kind.select(versions, dict(goal, columns=read)) ~ "\n)",
            "(\nselect stored.* from " ~ strandline.as_covered(relation, covered) ~ " as stored left semi join _cq_touched as touched on "
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


{% macro versions_of_touched(covered, goal, columns) -%}
    {#- All versions that raw has of the touched keys. -#}
    select {{ strandline.key_list(columns, "versions") }}
    from (
        {{ covered.select }}
    ) as versions
    left semi join _cq_touched as touched
        on {{ strandline.same_key(goal.primary_key, "versions", "touched") }}
{%- endmacro %}


{% macro versions_since(relation, before, covered, goal, proof, columns) -%}
    {#-
        Of the touched keys, enough versions to tell the newest, without all of raw: the asked ones; what the table
        showed when it was last proved, which stands for all that is not asked; and all tombstones, as a key that was
        not shown then may have one that overrules a late version. Iceberg skips files without tombstones.
    -#}
    {%- set asked = strandline.asked(proof) -%}
    select {{ strandline.key_list(columns) }}
    from (
        {{ covered.select }}
    ) as versions
    where {{ asked }}
    union all
    select {{ strandline.key_list(columns) }}
    from {{ strandline.standing_versions(relation, before, covered, proof, columns) }}
{%- endmacro %}


{% macro standing_versions(relation, before, covered, proof, columns, condition="true", hashed=false) -%}
    {#-
        Of the touched keys, what is not asked and stands: all tombstones, and the rows that the table showed when it
        was last proved, as far as they meet a condition. With `hashed`, the touched keys are known by their hashes.
    -#}
    (
        select {{ strandline.key_list(columns) }}
        from (
            {{ covered.select }}
        ) as versions
        where _cq_deleted and not {{ strandline.asked(proof) }}
        union all
        select {{ strandline.key_list(columns) }}
        from {{ relation }} version as of {{ before }} as proved
        where not {{ strandline.asked(proof, of_table=true) }} and {{ condition }}
    ) as standing
    left semi join _cq_touched as touched
        {%- if hashed %}
        on {{ strandline.key_hash(covered.primary_key, "standing") }} = touched._cq_key_hash
        {%- else %}
        on {{ strandline.same_key(covered.primary_key, "standing", "touched") }}
        {%- endif %}
{%- endmacro %}


{% macro proved_before(relation, covered, goal, proof) -%}
    {#-
        The Iceberg snapshot of the table that was last proved, if it can stand for the versions that raw had then;
        else none: a history shows no single version, a filter or a full refresh may hide the newest one of a key,
        and a SELECT that looks at other rows may show old versions of a key only later.
    -#}
    {%- set before = proof.get("proved_as") -%}
    {%- if before is none or goal.kind.keeps_versions or strandline.shown_newest(goal) is not none
        or not strandline.selects_by_row(covered.select, goal.tables) -%}
        {{ return(none) }}
    {%- elif before == covered.current | string or before in strandline.parents_told(relation | string, covered.current) -%}
        {{ return(before) }}
    {%- endif -%}
    {{ return(none) }}
{%- endmacro %}


{% macro selects_by_row(select_sql, tables) -%}
    {#-
        Whether a SELECT surely decides about each version by that version alone: it reads each raw table by its name,
        reads nothing else, and has no clause that looks at other rows, or at the time. If in doubt, it does not.
    -#}
    {%- set find = modules.re.findall -%}
    {#- code_of() puts a blank after each name in backticks. -#}
    {%- set code = strandline.code_of(select_sql) | lower | replace("`", "") | replace(" .", ".") -%}
    {%- set names = tables | map(attribute="name") | map("lower") | list -%}
    {%- set named = find("\\b(\\w+)\\s+as\\s*\\(\\s*(?:select|with)\\b", code) -%}
    {%- set raw_reads = [] -%}
    {%- set mentions = [] -%}
    {%- set foreign_reads = [] -%}
    {%- for read in find("\\bfrom\\s*(\\(|[^\\s(),;]+)", code) if read != "(" and read not in named -%}
        {%- do (raw_reads if read.split(".")[-2:] | join(".") in names else foreign_reads).append(read) -%}
    {%- endfor -%}
    {%- for name in names -%}
        {%- do mentions.extend(find("(?<!\\w)" ~ modules.re.escape(name) ~ "(?!\\w)", code)) -%}
    {%- endfor -%}
    {{ return(
        raw_reads | length > 0
        and raw_reads | length == mentions | length
        and not foreign_reads
        and not find("\\bfrom\\s+[\\w.]+(?:\\s+(?:as\\s+)?\\w+)?\\s*,", code)
        and find("\\(\\s*(?:select|with)\\b", code) | length == find("\\b(?:from|as)\\s*\\(\\s*(?:select|with)\\b", code) | length
        and not find(
            "\\b(?:join|lateral|over|qualify|exists|group|having|distinct|limit|offset|intersect|except|minus|tablesample"
            ~ "|current_\\w+|localtimestamp|session_user)\\b"
            ~ "|\\b(?:now|curdate|user|rand\\w*|uniform|uuid|unix_timestamp|monotonically_increasing_id)\\s*\\(",
            code
        )
    ) }}
{%- endmacro %}
