{% test cursor_conflict(model, primary_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_cursor_conflict", "strandline")(model, primary_key, cursor_field, row_condition) }}
{% endtest %}


{% macro spark__test_cursor_conflict(model, primary_key, cursor_field, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set raw = strandline.tested_relation(model) %}
    {%- set keys = strandline.tested_key(raw, primary_key, "cursor_conflict") %}
    {%- set cursor = strandline.tested_order(raw, cursor_field, "cursor_conflict") %}
    {%- set incidents = strandline.acknowledged_of(raw, "cursor_conflict") %}
    {%- set proof = strandline.proof_of_rows(model, {"keys": keys, "cursor": cursor, "known": incidents}, row_condition) %}
    {{ proof.note }}
    {%- if strandline.versions_in_order(proof, raw, keys, cursor) %}
    {{ strandline.nothing_found("cast(null as bigint) as _cq_batch") }}
    {%- else %}
    {%- set generations = run_query(
        "select min(_cq_generation), max(_cq_generation) from " ~ raw ~ " as versions"
    ).rows[0] %}
    with conflicts as (
        {{ strandline.duplicates(
            strandline.asked_keys(proof, strandline.tested_rows(model, row_condition), keys, cursor), keys, cursor
        ) }}
    )

    select conflicts.*
    from conflicts
    {%- if generations[0] != generations[1] %}
    -- a full refresh or a repair that read the key again says which payload is right
    left anti join (select * from {{ raw }} as versions where _cq_generation > {{ generations[0] }}) as newer
        on {{ strandline.same_key(keys, "conflicts", "newer") }}
        and newer._cq_generation > conflicts._cq_generation
    {%- endif %}
    where conflicts.duplicate_kind = 'conflict'
        -- a null cursor claims no order, so the later batch is rightly the latest
        and conflicts.{{ strandline.quoted(cursor) }} is not null
        and {{ strandline.not_acknowledged(incidents, "conflicts._cq_batch") }}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
