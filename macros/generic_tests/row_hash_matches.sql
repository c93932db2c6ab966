{% test row_hash_matches(model, row_condition=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_row_hash_matches", "strandline")(model, row_condition) }}
{% endtest %}


{% macro spark__test_row_hash_matches(model, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set raw = strandline.tested_relation(model) %}
    {%- set incidents = strandline.acknowledged_of(raw, "row_hash_matches") %}
    {%- set row_hash = strandline.row_hash(raw) %}
    {%- set proof = strandline.proof_of_rows(model, {"hash": row_hash, "known": incidents}, row_condition) %}
    {{ proof.note }}
    with versions as (
        select
            *,
            {{ row_hash }} as computed_row_hash
        from {{ strandline.asked_rows(proof, strandline.tested_rows(model, row_condition)) }} as versions
    )

    select
        *,
        'the columns are not those that the loader wrote' as problem
    from versions
    where not (_cq_row_hash <=> computed_row_hash)
        and {{ strandline.not_acknowledged(incidents, "_cq_batch") }}
    {%- endif %}
{%- endmacro %}
