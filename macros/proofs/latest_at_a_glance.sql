{% macro latest_at_a_glance(relation, covered, goal, proof) -%}
    {#-
        A SELECT that reads less than unproved_differences(); none if there is no such SELECT. Where it finds
        something, that macro's own SELECT decides, and names the rows. Where it finds nothing, that one finds nothing
        about keys with a new version.

        Of what the table showed when it was last proved it reads only rows that can be newer than a new version. A
        key with a new version shows the newest of its asked versions, its tombstones and that row. Of a key without
        one, the asked version must be there, or a newer one of a batch that is not asked, or a tombstone: whether
        that is the right one is asked when its own turn comes.
    -#}
    {%- set before = strandline.proved_before(relation, covered, goal, proof) -%}
    {%- if before is none or goal.tables | length > 1 or strandline.shown_of(goal.tables) is not none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set maybe_newer = strandline.maybe_newer(covered, goal, proof) -%}
    {%- if maybe_newer is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set keys = goal.primary_key -%}
    {#- Keys hash alike, and rows compare, only in the same types: raw may have grown since the table was built. -#}
    {%- for name, column in covered.selected.items() if column.type != covered.stored[name].type -%}
        {{ return(none) }}
    {%- endfor -%}
    {%- set named = (keys + [goal.cursor_field]) | map("lower") | list -%}
    {%- set ordering = ["_cq_generation", "_cq_batch", "_cq_seq"] -%}
    {%- set told = [] -%}
    {%- set content = [] -%}
    {%- for name, column in covered.selected.items() -%}
        {%- if name == "_cq_row_hash" -%}
            {%- do told.append(column) -%}
        {%- elif name not in named and name not in ordering -%}
            {%- do content.append(column) -%}
        {%- endif -%}
    {%- endfor -%}
    {#- The cursor may be a part of the key. -#}
    {%- set columns = (keys + [goal.cursor_field] + ordering + ["_cq_deleted"]) | unique | list + told | map(attribute="name") | list -%}
    {%- set asked = strandline.asked(proof) -%}
    {%- set new = strandline.of_batches(proof.tables, above="proved_to") -%}
    {%- set up_to_head = strandline.of_batches(proof.tables, up_to="head") -%}
    {%- set version -%}
        {{ strandline.version_order(goal.cursor_field) }} as _cq_order,
        struct(
            _cq_deleted
            {%- for column in told %},
            {{ strandline.comparable(column) }}
            {%- endfor %}
        ) as _cq_content
    {%- endset -%}
    {#-
        A model may have CTEs of its own, and Spark refuses a name within that of another one.
        The touched keys are those of raw, few enough to broadcast: Iceberg tells how many rows a batch has, but not
        how many of the table's are of it. A row of an asked batch whose key raw does not have there is wrong. Their
        hashes are enough, and cheaper to look for in all rows: a key with the same hash can only be asked about, too.
    -#}
    with _cq_touched as (
        select {{ strandline.key_hash(keys) }} as _cq_key_hash
        from (
            {{ covered.select }}
        ) as versions
        where {{ asked }} and {{ up_to_head }}
    ),

    _cq_told as (
        select
            {{ strandline.key_list(keys) }},
            {{ version }},
            false as _cq_is_shown,
            true as _cq_is_asked,
            {{ new }} as _cq_is_new
        from (
            {{ covered.select }}
        ) as versions
        where {{ asked }} and {{ up_to_head }}
        union all
        select
            {{ strandline.key_list(keys) }},
            {{ version }},
            false,
            false,
            false
        from {{ strandline.standing_versions(relation, before, covered, proof, columns, maybe_newer, hashed=true) }}
        union all
        select
            {{ strandline.key_list(keys) }},
            {{ version }},
            true,
            {{ strandline.asked(proof, of_table=true) }},
            {{ new }}
        from {{ strandline.as_covered(relation, covered) }} as stored
        where {{ strandline.asked(proof, of_table=true) }}
            or exists (
                select true
                from _cq_touched as touched
                where {{ strandline.key_hash(keys, "stored") }} = touched._cq_key_hash
            )
    ),

    _cq_by_key as (
        select
            {{ strandline.key_list(keys) }},
            -- a version's order comes first in its struct
            max(if(_cq_is_shown, null, struct(_cq_order, _cq_content))) as _cq_newest,
            max(if(_cq_is_shown, struct(_cq_order, _cq_content), null)) as _cq_shown,
            count_if(_cq_is_shown) as _cq_rows_shown,
            bool_or(_cq_is_shown and _cq_is_asked) as _cq_shows_asked,
            coalesce(bool_or(_cq_is_new), false) as _cq_is_new
        from _cq_told as told_versions
        group by {{ strandline.key_list(keys) }}
    )

    select {{ strandline.key_list(keys) }}
    from _cq_by_key as by_key
    where not coalesce(
        case _cq_rows_shown
            when 0 then _cq_newest._cq_content._cq_deleted
            when 1 then _cq_newest = _cq_shown
                and not coalesce(_cq_shown._cq_content._cq_deleted, false)
                or not _cq_is_new and not _cq_shows_asked and _cq_shown._cq_order > _cq_newest._cq_order
        end,
        false
    )
    {%- if content %}
    {%- set identity = keys + ["_cq_batch", "_cq_seq"] %}
    union all
    select {{ strandline.key_list(keys, "expected") }}
    from (
        select {{ strandline.compared_row(identity, content) }}
        from (
            {{ covered.select }}
        ) as versions
        where {{ asked }} and {{ up_to_head }}
    ) as expected
    inner join (
        select {{ strandline.compared_row(identity, content) }}
        from {{ strandline.as_covered(relation, covered) }} as stored
        where {{ asked }}
    ) as actual
        on {{ strandline.same_key(identity, "expected", "actual") }}
    where not (expected._cq_content <=> actual._cq_content)
    {%- endif %}
{%- endmacro %}


{% macro maybe_newer(covered, goal, proof) -%}
    {#-
        The condition that a row which is not asked can be newer than a version from a new batch: it has the lowest
        cursor of them or a higher one, or a higher generation. none if the cursor's type has no numbers to write as
        literals, or if a new version has no cursor. Literals, so that Iceberg can prune files.
    -#}
    {%- set cursor = goal.cursor_field -%}
    {%- set number = strandline.cursor_number(cursor, covered.selected.get(cursor | lower, {}).get("type")) if cursor else {} -%}
    {%- if not number.get("literal") -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set lowest_sql -%}
        select
            cast(min({{ number.number }}) as string),
            cast(min(_cq_generation) as string),
            count_if({{ strandline.quoted(cursor) }} is null or _cq_generation is null)
        from (
            {{ covered.select }}
        ) as versions
        where {{ strandline.of_batches(proof.tables, above="proved_to", up_to="head") }}
    {%- endset -%}
    {%- set lowest = run_query(lowest_sql).rows[0] -%}
    {%- if lowest[2] | int > 0 -%}
        {{ return(none) }}
    {%- elif lowest[0] is none -%}
        {{ return("false") }}
    {%- endif -%}
    {{ return(
        "(" ~ strandline.quoted(cursor) ~ " >= " ~ number.literal % lowest[0] ~ " or _cq_generation > " ~ lowest[1] ~ ")"
    ) }}
{%- endmacro %}
