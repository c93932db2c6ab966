{% macro differences(relation, expected_sql, identity, up_to, whole=true) -%}
    {#-
        The rows in which a table differs from what a SELECT says it should hold: missing, superfluous or
        different in some column; with `whole`, also the columns that the table lost. Rows are matched by the
        columns in `identity`.
    -#}
    {%- set columns = strandline.query_types(expected_sql).values() | list -%}
    {%- set present = strandline.column_names(relation) | map("lower") | list -%}
    {%- set compared = [] -%}
    {%- set missing = [] -%}
    {#- An Iceberg snapshot has the columns of its time: a column that was added later, without new rows, is null in it. -#}
    {%- set actual = strandline.pinned(relation) -%}
    {%- set of_then = strandline.query_types("select * from " ~ actual) -%}
    {%- set added = [] -%}
    {%- for column in columns -%}
        {%- do (compared if column.name | lower in present else missing).append(column) -%}
        {%- if column.name | lower in present and column.name | lower not in of_then -%}
            {%- do added.append(column) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if missing and whole %}
    select
        problem,
        {{ strandline.text_literal(up_to) }} as up_to
    from (select explode(array(
        {%- for column in missing %}
        {{ strandline.text_literal("the table has no column " ~ column.name) }}{{ "," if not loop.last }}
        {%- endfor %}
    )) as problem) as lost_columns
    {%- else %}
    {%- set stored -%}
        {% if added -%}
        (
            select
                *,
                {%- for column in added %}
                cast(null as {{ strandline.quoted_type(column.type) }}) as {{ strandline.quoted(column.name) }}
                {{- "," if not loop.last }}
                {%- endfor %}
            from {{ actual }}
        )
        {%- else -%}
        {{ actual }}
        {%- endif %}
    {%- endset %}
    {{ strandline.differing_rows("(\n" ~ expected_sql ~ "\n)", stored, identity, compared, up_to) }}
    {%- endif %}
{%- endmacro %}


{% macro differing_rows(expected, actual, identity, columns, up_to) -%}
    {#- The rows in which two relations differ, in the named columns; `actual` is the table that is tested. -#}
    with _cq_all_rows as (
        select
            true as _cq_expected,
            {{ strandline.compared_row(identity, columns) }}
        from {{ expected }} as expected
        union all
        select
            false as _cq_expected,
            {{ strandline.compared_row(identity, columns) }}
        from {{ actual }} as actual
    ),

    _cq_compared as (
        select
            {%- for name in identity %}
            {{ strandline.quoted(name) }},
            {%- endfor %}
            count_if(_cq_expected) as _cq_expected_rows,
            count_if(not _cq_expected) as _cq_actual_rows,
            first(if(_cq_expected, _cq_content, null), true) as _cq_expected_content,
            first(if(_cq_expected, null, _cq_content), true) as _cq_actual_content
        from _cq_all_rows as all_rows
        group by
            {%- for name in identity %}
            {{ strandline.quoted(name) }}{{ "," if not loop.last }}
            {%- endfor %}
    )

    select
        {%- for name in identity %}
        {{ strandline.quoted(name) }},
        {%- endfor %}
        {{ strandline.text_literal(up_to) }} as up_to,
        case
            when _cq_actual_rows = 0 then 'missing from the table'
            when _cq_expected_rows = 0 then 'not, or deleted, in the raw table'
            when _cq_actual_rows > 1 then 'several times in the table'
            else 'differs from what the raw table says'
        end as problem,
        _cq_expected_content._cq_batch as expected_batch,
        _cq_expected_content._cq_seq as expected_seq,
        _cq_actual_content._cq_batch as actual_batch,
        _cq_actual_content._cq_seq as actual_seq,
        filter(
            array(
                {%- for column in columns %}
                if(
                    _cq_expected_content.{{ strandline.quoted(column.name) }} <=> _cq_actual_content.{{ strandline.quoted(column.name) }},
                    null,
                    {{ strandline.text_literal(column.name) }}
                ){{ "," if not loop.last }}
                {%- endfor %}
            ),
            column_name -> column_name is not null
        ) as differing_columns
    from _cq_compared as compared
    where _cq_expected_rows <> _cq_actual_rows
        or _cq_actual_rows > 1
        or not (_cq_expected_content <=> _cq_actual_content)
{%- endmacro %}


{% macro compared_row(identity, columns) -%}
    {#- The columns to match a row by, and the whole row as one value. -#}
    {%- for name in identity -%}
    {{ strandline.quoted(name) }},
    {% endfor -%}
    struct(
        {%- for column in columns %}
        {{ strandline.comparable(column) }} as {{ strandline.quoted(column.name) }}{{ "," if not loop.last }}
        {%- endfor %}
    ) as _cq_content
{%- endmacro %}


{% macro covered_goal(covered) -%}
    {#- What a table covers according to its watermark, in the form of goal(). -#}
    {%- set names = covered.get("raw") or [""] -%}
    {%- set many = names | length > 1 -%}
    {%- set kind = strandline.kind_of(covered.materialization) -%}
    {%- set goal = {
        "kind": kind,
        "columns": strandline.query_types(covered.select).values() | map(attribute="name") | list if kind.keeps_versions else [],
        "primary_key": covered.primary_key,
        "cursor_field": covered.cursor_field,
        "row_filter": covered.get("row_filter"),
        "tables": [],
        "floor": none,
        "refreshes": [],
    } -%}
    {%- for name in names -%}
        {%- set floor = covered.get("generation_floor") -%}
        {%- set table = {
            "name": name,
            "head": [covered.said.get(name, 0), covered.batches.get(name, 0)] | max,
            "floor": floor.get(name) if many and floor is mapping else floor,
            "refreshes": [],
        } -%}
        {%- if table.floor is not none and kind.keeps_versions -%}
            {%- set schema, dot, identifier = name.rpartition(".") -%}
            {%- set relation = strandline.exactly(schema, identifier) -%}
            {%- for refresh in strandline.complete_refreshes(relation, table.head, "") -%}
                {#- A refresh that the ledger called complete only after the build hides nothing yet. -#}
                {%- set known = table.floor.get(refresh.source, 0) if table.floor is mapping else table.floor -%}
                {%- if refresh.generation <= known -%}
                    {%- do table.refreshes.append(refresh) -%}
                {%- endif -%}
            {%- endfor -%}
        {%- endif -%}
        {%- do goal.tables.append(table) -%}
    {%- endfor -%}
    {%- do strandline.add_refreshes(goal) -%}
    {{ return(goal) }}
{%- endmacro %}


{% macro row_identity(goal) -%}
    {#- The columns that identify a row of a table: its key; in a history, also the version. -#}
    {%- set place = ["_cq_batch", "_cq_seq"] + (["_cq_table"] if goal.tables | length > 1 else []) -%}
    {{ return(goal.primary_key + (place if goal.kind.keeps_versions else [])) }}
{%- endmacro %}
