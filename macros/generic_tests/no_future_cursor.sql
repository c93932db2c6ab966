{% test no_future_cursor(model, cursor_field=none, tolerance=none, row_condition=none, primary_key=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_no_future_cursor", "strandline")(model, cursor_field, tolerance, row_condition, primary_key) }}
{% endtest %}


{% macro spark__test_no_future_cursor(model, cursor_field, tolerance, row_condition, primary_key) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set raw = strandline.tested_relation(model) %}
    {%- set cursor = strandline.tested_time(raw, cursor_field, "no_future_cursor") %}
    {%- set type = strandline.column_type(raw, cursor) %}
    {%- set keys = strandline.tested_optional_key(raw, primary_key) %}
    {%- set incidents = strandline.acknowledged_of(raw, "no_future_cursor") %}
    {%- set proof = strandline.proof_of_rows(
        model, {"keys": keys, "cursor": cursor, "known": incidents}, row_condition
    ) %}
    {{ proof.note }}
    {%- if tolerance is none and strandline.no_cursor_is("ahead", proof, raw, cursor) %}
    {{ strandline.nothing_found("cast(null as bigint) as _cq_batch") }}
    {%- else %}
    {%- set floor = strandline.refresh_floor(strandline.complete_refreshes(raw, none, strandline.test_on(raw))) %}
    {%- set ahead %}
        select *
        from {{ strandline.asked_rows(proof, strandline.tested_rows(model, row_condition)) }} as versions
        where {{ strandline.dated_ahead(strandline.quoted(cursor), type, tolerance) }}
            and {{ strandline.not_acknowledged(incidents, "_cq_batch") }}
        {%- if floor is not none %}
            -- rows that a complete full refresh has read again have a newer generation
            and {{ strandline.shown_from(floor) }}
        {%- endif %}
    {%- endset %}
    with ahead as (
        {{ ahead }}
    )

    select
        ahead.*,
        timestampdiff(
            second, ahead._cq_sync_time, {{ strandline.instant("ahead." ~ strandline.quoted(cursor), type) }}
        ) as seconds_ahead
    from ahead
    {#- Only if there is such a row, because this searches all of raw for a newer version that overrules it. #}
    {%- if keys and run_query("select 1 from (" ~ ahead ~ ") as ahead limit 1") | length > 0 %}
    left anti join {{ raw }} as newer
        on {{ strandline.same_key(keys, "ahead", "newer") }}
        and {{ strandline.version_order(cursor, "newer") }} > {{ strandline.version_order(cursor, "ahead") }}
    {%- endif %}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
