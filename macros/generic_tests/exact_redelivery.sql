{% test exact_redelivery(model, primary_key=none, cursor_field=none, max_share=0, row_condition=none) %}
    {{ config(severity="warn") }}
    {{ adapter.dispatch("test_exact_redelivery", "strandline")(model, primary_key, cursor_field, max_share, row_condition) }}
{% endtest %}


{% macro spark__test_exact_redelivery(model, primary_key, cursor_field, max_share, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set keys = strandline.tested_optional_key(model, primary_key) %}
    {%- set tested = strandline.tested_rows(model, row_condition) %}
    {%- set incidents = strandline.acknowledged_of(strandline.tested_relation(model), "exact_redelivery") %}
    {%- set cursor = strandline.tested_cursor(model, cursor_field) %}
    {#- A share of all rows takes all rows. #}
    {%- set proof = strandline.proof_of_rows(
        model, {"keys": keys, "cursor": cursor, "known": incidents}, row_condition or max_share != 0
    ) %}
    {{ proof.note }}
    {%- if strandline.versions_in_order(proof, tested, keys, cursor) %}
    {{ strandline.nothing_found("cast(null as bigint) as _cq_batch") }}
    {%- else %}
    with redeliveries as (
        select *
        from (
            {{ strandline.duplicates(strandline.asked_keys(proof, tested, keys, cursor), keys, cursor) }}
        ) as duplicates
        where duplicate_kind = 'redelivery'
            and {{ strandline.not_acknowledged(incidents, "_cq_batch") }}
    )
    {%- if max_share == 0 %}

    select *
    from redeliveries
    {%- else %},

    total as (
        select count(*) as all_rows
        from {{ tested }} as versions
    ),

    share as (
        select count(*) as redelivered_rows
        from redeliveries
    )

    select redeliveries.*
    from redeliveries
    cross join total
    cross join share
    where share.redelivered_rows > {{ max_share }} * total.all_rows
    {%- endif %}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
