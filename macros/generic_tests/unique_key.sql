{% test unique_key(model, primary_key=none, row_condition=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_unique_key", "strandline")(model, primary_key, row_condition) }}
{% endtest %}


{% macro spark__test_unique_key(model, primary_key, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as rows_of_key where false
    {%- else %}
    {%- set keys = strandline.tested_key(model, primary_key, "unique_key") %}
    {%- set tested = strandline.tested_rows(model, row_condition) %}
    {#- Of a merged table, only keys that a new batch touched can have another row than before. #}
    {%- set merged = strandline.tested_node(model).get("config", {}).get("materialized") in ("deduped_latest", "deduped_history") %}
    {%- set table = strandline.tested_relation(model) %}
    {%- set covered = strandline.watermark_told(table) if merged and model is not string else none %}
    {%- if covered is not none and covered.select and covered.primary_key == keys and row_condition in (none, "is_current") %}
    {%- set proof = strandline.proof_of_table(table, covered, strandline.covered_tables(covered), {"keys": keys}) %}
    {{ proof.note }}
    {%- endif %}
    {%- if proof is defined and (
        strandline.nothing_asked(proof) or row_condition is none and strandline.found_no_difference(proof, table, covered)
    ) %}
    {{ strandline.nothing_found("cast(null as bigint) as rows_of_key") }}
    {%- else %}
    {%- set followed = proof is defined and not proof.whole %}
    {%- set reopens = covered.materialization == "deduped_history" if followed %}
    {%- set hashed = followed and not reopens and strandline.few_asked(proof) %}
    select
        {%- if hashed %}
        /*+ broadcast(touched) */
        {%- endif %}
        {%- for key in keys %}
        rows_of_table.{{ strandline.quoted(key) }},
        {%- endfor %}
        count(*) as rows_of_key
    from {{ tested }} as rows_of_table
    {%- if followed %}
    left semi join (
        {#- A merge that leaves a key twice has written one of the two rows. In a history, it may also have reopened one. #}
        {%- if hashed %}
        {#- In its Iceberg snapshot the table may have a narrower type than it has now. #}
        select {{ strandline.key_hash(keys, types=covered.types) }} as key_hash
        from {{ strandline.as_covered(table, covered) }} as stored
        where {{ strandline.asked(proof, of_table=true) }}
        {%- else %}
        {{ strandline.touched_keys(table, covered, proof, in_raw=reopens) }}
        {%- endif %}
    ) as touched
        {%- if hashed %}
        on {{ strandline.key_hash(keys, "rows_of_table") }} = touched.key_hash
        {%- else %}
        on {{ strandline.same_key(keys, "rows_of_table", "touched") }}
        {%- endif %}
    {%- endif %}
    group by
        {%- for key in keys %}
        rows_of_table.{{ strandline.quoted(key) }}{{ "," if not loop.last }}
        {%- endfor %}
    having count(*) > 1
    {%- endif %}
    {%- endif %}
{%- endmacro %}
