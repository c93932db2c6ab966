{% test redelivered_at_boundary(model, primary_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="warn") }}
    {{ adapter.dispatch("test_redelivered_at_boundary", "strandline")(model, primary_key, cursor_field, row_condition) }}
{% endtest %}


{% macro spark__test_redelivered_at_boundary(model, primary_key, cursor_field, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set raw = strandline.tested_relation(model) %}
    {%- set cursor = strandline.tested_order(raw, cursor_field, "redelivered_at_boundary") %}
    {%- set syncs = strandline.syncs_relation(raw.schema) %}
    {%- if not strandline.exists(syncs) %}
    {{ strandline.missing_ledger(syncs) }}
    {%- else %}
    {%- set keys = strandline.tested_optional_key(raw, primary_key) %}
    {%- set incidents = strandline.acknowledged_of(raw, "redelivered_at_boundary") %}
    {#- A batch whose ledger row is still missing has not been judged. #}
    {%- set judged = strandline.ledger_told(syncs).get(raw.identifier, 0) %}
    {%- set proof = strandline.proof_of_rows(
        model, {"keys": keys, "cursor": cursor, "known": incidents, "judged": judged}, row_condition
    ) %}
    {{ proof.note }}
    {%- if strandline.versions_in_order(proof, raw, keys, cursor) %}
    {{ strandline.nothing_found("cast(null as bigint) as _cq_batch") }}
    {%- else %}
    with redeliveries as (
        {{ strandline.duplicates(
            strandline.asked_keys(proof, strandline.tested_rows(model, row_condition), keys, cursor), keys, cursor
        ) }}
    ),

    windows as (
        select
            batch,
            max_by(cursor_low, started_at) as cursor_low
        from {{ syncs }} as syncs
        where table_name = {{ strandline.text_literal(raw.identifier) }}
            and status in ('synced', 'recovered')
            and mode = 'incremental'
            and cursor_field = {{ strandline.text_literal(cursor) }}
        group by batch
    )

    select
        redeliveries.*,
        windows.cursor_low,
        'delivered again below the window of its sync' as problem
    from redeliveries
    inner join windows
        on redeliveries._cq_batch = windows.batch
    where redeliveries.duplicate_kind = 'redelivery'
        -- a null cursor has no place in the window: every sync reads such rows
        and redeliveries.{{ strandline.quoted(cursor) }}
            < {{ strandline.cursor_value("windows.cursor_low", strandline.column_type(raw, cursor)) }}
        and {{ strandline.not_acknowledged(incidents, "redeliveries._cq_batch") }}
    {%- endif %}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
