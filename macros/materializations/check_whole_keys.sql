{% macro check_all_rows_asked(existing, target, owner) -%}
    {#- dbt's --empty and --sample make a SELECT read less than it says: the watermark would skip the rest. -#}
    {%- if flags.EMPTY and existing is not none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": --empty would empty " ~ target ~ ". Remove --empty, or build into a schema of its own "
            ~ "(--target)."
        ) }}
    {%- endif -%}
    {%- if invocation_args_dict.get("sample") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": --sample reads only part of the versions, so the newest version of each key is unknown, and "
            ~ target ~ " would never show the rest. Remove --sample, or exclude the model (--exclude) and sample "
            ~ "the models that read it."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro check_whole_keys(sql, goal, plan, owner) -%}
    {#-
        A SELECT may leave out keys, but not versions of a key that it keeps: without the newest version the
        snapshot would keep showing the one before. Nor may it return a version twice, as a join can.
        Counts what this build reads, and, of keys that it reads versions of, what was left out before; a SELECT of
        a whole table needs no count.
    -#}
    {%- set tables = goal.tables -%}
    {%- if flags.EMPTY or tables | map(attribute="relation") | select("none") | list -%}
        {{ return(none) }}
    {%- endif -%}
    {%- if strandline.selects_whole_table(sql, tables) -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set above = "low" if plan.step == "merge" else none -%}
    {%- set asked = strandline.of_batches(tables, above=above, up_to="head") -%}
    {%- set raw = strandline.raw_versions(tables, []) -%}
    {%- if tables | length > 1 -%}
        {%- do strandline.check_labels(sql, tables, owner) -%}
    {%- endif -%}
    {%- set place = "struct(_cq_batch, _cq_seq" ~ (", _cq_table" if tables | length > 1 else "") ~ ")" -%}
    {%- set counts_sql -%}
        with kept as (
            select
                count(*) as kept,
                count(distinct {{ place }}) as places
            from (
                {{ sql }}
            ) as versions
            where {{ asked }}
        ),

        delivered as (
            select count(*) as delivered
            from ({{ raw }}) as versions
            where {{ asked }}
        )

        select kept, places, delivered
        from kept
        cross join delivered
    {%- endset -%}
    {%- set kept, places, delivered = run_query(counts_sql).rows[0] -%}
    {%- if kept > places -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT returns " ~ kept ~ " rows for " ~ places ~ " versions of "
            ~ tables | map(attribute="name") | join(", ") ~ ": a join matches a row several times, or a union reads a table "
            ~ "twice. Build the snapshot from the raw table alone, and join in a model that reads the snapshot."
        ) }}
    {%- elif places > delivered -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT returns " ~ places ~ " versions, but " ~ tables | map(attribute="name") | join(", ")
            ~ " has " ~ delivered ~ ": the others come from a table that is not a raw table. Name each raw table by its own "
            ~ "source(), in strandline.union_raw()."
        ) }}
    {%- elif kept < delivered or kept and plan.step == "merge" and strandline.left_out_before(sql, tables) -%}
        {%- do strandline.check_left_out(sql, goal, asked, plan, owner) -%}
    {%- endif -%}
{%- endmacro %}


{% macro selects_whole_table(sql, tables) -%}
    {#- Whether a SELECT is plainly `select * from` the only raw table. -#}
    {%- set plain = "select * from " ~ tables[0].relation -%}
    {{ return(
        tables | length == 1
        and sql.split() | join(" ") | replace("`", "") | lower == plain | replace("`", "") | lower
    ) }}
{%- endmacro %}


{% macro left_out_before(sql, tables) -%}
    {#- Whether a SELECT left out any version that earlier builds have read. -#}
    {%- set before = strandline.of_batches(tables, up_to="low") -%}
    {%- set counts_sql -%}
        select
            (select count(*) from ({{ strandline.raw_versions(tables, []) }}) as delivered where {{ before }}),
            (
                select count(*)
                from (
                    {{ sql }}
                ) as kept
                where {{ before }}
            )
    {%- endset -%}
    {%- set delivered, kept = run_query(counts_sql).rows[0] -%}
    {{ return(kept < delivered) }}
{%- endmacro %}


{% macro check_labels(sql, tables, owner) -%}
    {#- A row that names a table that the model does not read would belong to no table's batches. -#}
    {%- set names = tables | map(attribute="name") | list -%}
    {%- for row in run_query("select distinct _cq_table from (\n" ~ sql ~ "\n) as versions") if row[0] not in names -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT has _cq_table '" ~ row[0] ~ "', which is not one of the tables that it reads: "
            ~ names | join(", ") ~ ". strandline.union_raw() writes the right names."
        ) }}
    {%- endfor -%}
{%- endmacro %}


{% macro raw_versions(tables, names) -%}
    {#- Table, batch, position and the named columns of all versions of the raw tables. -#}
    {%- for table in tables %}
    select
        {%- for name in names %}
        {{ strandline.quoted(name) }},
        {%- endfor %}
        {{ strandline.text_literal(table.name) }} as _cq_table,
        _cq_batch,
        _cq_seq
    from {{ table.relation }} as versions
    {{- "\n    union all" if not loop.last }}
    {%- endfor %}
{%- endmacro %}


{% macro check_left_out(sql, goal, asked, plan, owner) -%}
    {%- set remedy = "a filter before the dedupe: a key whose newest version it drops would keep showing an older one, and "
        ~ "deleted rows, which hold only their key, would stay. Put the condition into config(row_filter=\"...\"), "
        ~ "which applies to the newest version." -%}
    {%- set renamed = [] -%}
    {%- for table in goal.tables -%}
        {%- set names = adapter.get_columns_in_relation(table.relation) | map(attribute="name") | map("lower") | list -%}
        {%- for key in goal.primary_key if key | lower not in names and key | lower != "_cq_table" -%}
            {%- do renamed.append(key) -%}
        {%- endfor -%}
    {%- endfor -%}
    {#- If the SELECT renames or computes a key, the versions that it leaves out do not show that key's value. -#}
    {%- set known = goal.primary_key | reject("in", renamed) | list -%}
    {%- set keys = known | reject("equalto", "_cq_table") | list -%}
    {%- set place = ["_cq_batch", "_cq_seq"] + (["_cq_table"] if goal.tables | length > 1 else []) -%}
    {%- set left_out_sql -%}
        with kept as (
            select *
            from (
                {{ sql }}
            ) as versions
            where {{ strandline.of_batches(goal.tables, up_to="head") }}
        ),

        delivered as (
            select
                versions.*,
                {{ asked }} as _cq_is_asked
            from (
                {{ strandline.raw_versions(goal.tables, keys) }}
            ) as versions
            {%- if plan.step == "merge" and known %}
            left semi join (
                select {{ strandline.key_list(known) }}
                from (
                    {{ strandline.raw_versions(goal.tables, keys) }}
                ) as versions
                where {{ asked }}
            ) as touched
                on {{ strandline.same_key(known, "versions", "touched") }}
            {%- endif %}
        ),

        left_out as (
            select versions.*
            from delivered as versions
            left anti join kept
                on {{ strandline.same_key(place, "versions", "kept") }}
            where {{ strandline.of_batches(goal.tables, up_to="head") }}
        ),

        -- by raw's own keys: the SELECT may have computed other values under the same names
        kept_keys as (
            select versions.*
            from delivered as versions
            left semi join kept
                on {{ strandline.same_key(place, "versions", "kept") }}
        )

        select
            count(*),
            {%- for key in keys %}
            cast(min_by({{ strandline.quoted(key) }}, struct(_cq_batch, _cq_seq)) as string),
            {%- endfor %}
            min(_cq_batch)
        from left_out
        left semi join kept_keys
            on {{ strandline.same_key(known, "left_out", "kept_keys") if known else "true" }}
            and (left_out._cq_is_asked or kept_keys._cq_is_asked)
    {%- endset -%}
    {%- set found = run_query(left_out_sql).rows[0] -%}
    {%- if found[0] and renamed -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT leaves out " ~ found[0] ~ " versions, and raw has no column " ~ renamed | unique | join(", ")
            ~ " to tell whether it keeps others of their keys. It is " ~ remedy
        ) }}
    {%- elif found[0] -%}
        {%- set example = [] -%}
        {%- for key in keys -%}
            {%- do example.append(key ~ " " ~ found[loop.index]) -%}
        {%- endfor -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT leaves out " ~ found[0] ~ " versions of keys that it keeps (" ~ example | join(", ")
            ~ ", batch " ~ found[keys | length + 1] ~ "). It is " ~ remedy
        ) }}
    {%- endif -%}
{%- endmacro %}
