{% test latest_matches_raw(model, raw=none, primary_key=none, cursor_field=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_latest_matches_raw", "strandline")(model, raw, primary_key, cursor_field) }}
{% endtest %}


{% macro spark__test_latest_matches_raw(model, raw, primary_key, cursor_field) -%}
    {%- set snapshot = strandline.tested_table(model, "latest_matches_raw") %}
    {%- if not strandline.testing() %}
        select 'problem' as problem where false
    {%- else %}
    {%- set covered = strandline.watermark_told(snapshot) %}
    {%- if covered is not none and covered.materialization == "deduped_latest" and covered.select %}
    {#- What the table says about itself: the SELECT that built it, and the batches that it covers. #}
    {%- set goal = strandline.covered_goal(covered) %}
    {%- set keys = primary_key or covered.primary_key %}
    {%- set expected = strandline.latest_select(covered.select, goal) %}
    {%- set up_to = strandline.heads_told(goal) %}
    {%- set whole = true %}
    {%- if keys == covered.primary_key %}
    {%- set proof = strandline.proof_of_table(snapshot, covered, goal.tables, {"keys": keys}, compared=true) %}
    {%- endif %}
    {%- else %}
    {%- set whole = false %}
    {%- set raw = strandline.tested_source(snapshot, raw, "latest_matches_raw") %}
    {%- set keys = primary_key or strandline.tested_key(snapshot, primary_key, "latest_matches_raw") %}
    {%- set covered = covered or {"said": {"": 0}, "batches": {"": strandline.head_batch(snapshot) or 0}} %}
    {%- set batch = (covered.said.values() | list + covered.batches.values() | list) | max %}
    {%- set up_to = "batch " ~ batch %}
    {%- set expected = strandline.deduped_latest(
        strandline.generations_from(raw, covered.get("generation_floor")),
        keys,
        strandline.tested_cursor(snapshot, cursor_field),
        batch
    ) %}
    {%- endif %}
    {%- set differing %}
    {%- if proof is defined and not proof.whole %}
    {{ strandline.unproved_differences(snapshot, covered, goal, proof, up_to) }}
    {%- else %}
    {{ strandline.differences(snapshot, expected, [keys] if keys is string else keys, up_to, whole) }}
    {%- endif %}
    {%- endset %}
    {%- if proof is defined %}
    {{ proof.note }}
    {%- endif %}
    {%- if proof is defined and strandline.no_difference(proof, snapshot, covered, goal, differing) %}
    {{ strandline.nothing_found("'problem' as problem") }}
    {%- else %}
    {{ differing }}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
