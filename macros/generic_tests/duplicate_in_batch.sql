{% test duplicate_in_batch(model, primary_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="warn") }}
    {{ adapter.dispatch("test_duplicate_in_batch", "strandline")(model, primary_key, cursor_field, row_condition) }}
{% endtest %}


{% macro spark__test_duplicate_in_batch(model, primary_key, cursor_field, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set keys = strandline.tested_optional_key(model, primary_key) %}
    {%- set incidents = strandline.acknowledged_of(strandline.tested_relation(model), "duplicate_in_batch") %}
    {%- set cursor = strandline.tested_cursor(model, cursor_field) %}
    {%- set proof = strandline.proof_of_rows(model, {"keys": keys, "cursor": cursor, "known": incidents}, row_condition) %}
    {{ proof.note }}
    {%- if strandline.versions_in_order(proof, strandline.tested_rows(model, row_condition), keys, cursor) %}
    {{ strandline.nothing_found("cast(null as bigint) as _cq_batch") }}
    {%- else %}
    with duplicates as (
        {#- The row that another one repeats came just before it, in the same batch. #}
        {{ strandline.duplicates(
            strandline.asked_rows(proof, strandline.tested_rows(model, row_condition)), keys, cursor
        ) }}
    )

    select *
    from duplicates
    where duplicate_kind = 'in_batch'
        and {{ strandline.not_acknowledged(incidents, "_cq_batch") }}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
