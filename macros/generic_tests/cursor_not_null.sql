{% test cursor_not_null(model, cursor_field=none, max_share=0, row_condition=none) %}
    {{ config(severity="warn") }}
    {{ adapter.dispatch("test_cursor_not_null", "strandline")(model, cursor_field, max_share, row_condition) }}
{% endtest %}


{% macro spark__test_cursor_not_null(model, cursor_field, max_share, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set cursor = strandline.tested_order(model, cursor_field, "cursor_not_null") %}
    {%- set incidents = strandline.acknowledged_of(strandline.tested_relation(model), "cursor_not_null") %}
    {#- A share of all rows takes all rows. #}
    {%- set proof = strandline.proof_of_rows(model, {"cursor": cursor, "known": incidents}, row_condition or max_share != 0) %}
    {{ proof.note }}
    {%- if strandline.no_cursor_is("missing", proof, strandline.tested_rows(model, row_condition), cursor) %}
    {{ strandline.nothing_found("cast(null as bigint) as _cq_batch") }}
    {%- else %}
    with versions as (
        select *
        from {{ strandline.asked_rows(proof, strandline.tested_rows(model, row_condition)) }} as versions
        where not coalesce(_cq_deleted, false)
            and {{ strandline.not_acknowledged(incidents, "_cq_batch") }}
    ),

    share as (
        select
            count(*) as all_rows,
            count_if({{ strandline.quoted(cursor) }} is null) as rows_without_cursor
        from versions
    )

    select versions.*
    from versions
    cross join share
    where versions.{{ strandline.quoted(cursor) }} is null
        and share.rows_without_cursor > {{ max_share }} * share.all_rows
    {%- endif %}
    {%- endif %}
{%- endmacro %}
