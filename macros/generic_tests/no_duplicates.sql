{% test no_duplicates(model, kinds=none, unique_key=none, cursor_field=none, max_share=0,
    row_condition=none) %}
    {{ config(severity="warn", tags=["strandline"]) }}
    {{ strandline._row_test_sql("no_duplicates", model, unique_key, cursor_field, row_condition, [],
        {"kinds": kinds, "max_share": max_share}) }}
{% endtest %}


{% macro _no_duplicates_sql(subject, asked, kinds=none, max_share=0) -%}
    {#-
        Returns redelivered rows of the given kinds:
        - `across_batches`: a later sync has read the row a second time.
        - `in_batch`: one batch contains the row twice.
        - `at_boundary`: a later sync has read the row a second time, although its cursor is below
          the window of the sync. An inclusive lower bound cannot be the cause.
    -#}
    {%- set kinds = strandline._as_list(kinds) or ["across_batches", "in_batch"] -%}
    {%- for kind in kinds if kind not in ["across_batches", "in_batch", "at_boundary"] -%}
        {{ exceptions.raise_compiler_error(
            "no_duplicates: there is no kind '" ~ kind ~ "'. Choose from across_batches, "
            ~ "in_batch, at_boundary."
        ) }}
    {%- endfor -%}
    {%- set conditions = [] -%}
    {%- if "across_batches" in kinds -%}
        {%- do conditions.append("duplicate_kind = 'redelivery'") -%}
    {%- elif "at_boundary" in kinds -%}
        {%- set raw = (strandline._raw_relations(subject) or [subject.relation])[0] -%}
        {%- set type = strandline._cursor_type(subject) -%}
        {%- set below_window -%}
            duplicate_kind = 'redelivery' and exists (
                select 1
                from {{ strandline._own_table(raw.schema, "_cq_syncs") }} as syncs
                where syncs.table_name = {{ strandline._literal(raw.identifier) }}
                    and syncs.status in ('synced', 'recovered')
                    and syncs.mode = 'incremental'
                    and syncs.cursor_field = {{ strandline._literal(subject.cursor) }}
                    and syncs.batch = found._cq_batch
                    and found.{{ strandline._quote(subject.cursor) }}
                        < {{ strandline._cursor_value("syncs.cursor_low", type) }}
            )
        {%- endset -%}
        {%- do conditions.append(below_window) -%}
    {%- endif -%}
    {%- if "in_batch" in kinds -%}
        {%- do conditions.append("duplicate_kind = 'in_batch'") -%}
    {%- endif -%}
    {%- set failing -%}
    select found.*
    from (
        {{ strandline.duplicates(
            strandline._touched(subject, subject.versions, asked), strandline._version_key(subject),
            subject.cursor
        ) }}
    ) as found
    where ({{ conditions | join(" or ") }})
        and {{ strandline._not_acknowledged(subject.get("incidents", []), "found._cq_batch") }}
    {%- endset -%}
    {%- if not max_share -%}
        {{ failing }}
    {%- else -%}
    select *
    from (
        {{ failing }}
    ) as failing
    where (select count(*) from ({{ failing }}) as counted)
        > {{ max_share }} * (select count(*) from {{ subject.versions }} as versions)
    {%- endif -%}
{%- endmacro %}
