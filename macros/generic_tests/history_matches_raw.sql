{% test history_matches_raw(model) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_history_matches_raw", "strandline")(model) }}
{% endtest %}


{% macro spark__test_history_matches_raw(model) -%}
    {%- set history = strandline.tested_table(model, "history_matches_raw") %}
    {%- if not strandline.testing() %}
        select 'problem' as problem where false
    {%- else %}
    {%- set covered = strandline.watermark_told(history) %}
    {%- if covered is none or covered.materialization != "deduped_history" or not covered.select %}
        {{ exceptions.raise_compiler_error(
            "Test history_matches_raw on " ~ history ~ ": materialized='deduped_history' did not build this table, or "
            ~ "an earlier version of this package did. Build it once with --full-refresh, or remove the test."
        ) }}
    {%- endif %}
    {%- set goal = strandline.covered_goal(covered) %}
    {%- set proof = strandline.proof_of_table(history, covered, goal.tables, {}, compared=true) %}
    {{ proof.note }}
    {%- if strandline.nothing_asked(proof) %}
    {{ strandline.nothing_found("'problem' as problem") }}
    {%- elif not proof.whole %}
    {{ strandline.unproved_differences(history, covered, goal, proof, strandline.heads_told(goal)) }}
    {%- else %}
    {{ strandline.differences(
        history,
        strandline.history_select(covered.select, goal),
        strandline.row_identity(goal),
        strandline.heads_told(goal)
    ) }}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
