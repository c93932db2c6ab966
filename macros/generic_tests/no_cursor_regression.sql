{% test no_cursor_regression(model, primary_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="warn") }}
    {{ adapter.dispatch("test_no_cursor_regression", "strandline")(model, primary_key, cursor_field, row_condition) }}
{% endtest %}


{% macro spark__test_no_cursor_regression(model, primary_key, cursor_field, row_condition) -%}
    {%- if not strandline.testing() %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set keys = strandline.tested_key(model, primary_key, "no_cursor_regression") %}
    {%- set cursor = strandline.tested_order(model, cursor_field, "no_cursor_regression") %}
    {%- set incidents = strandline.acknowledged_of(strandline.tested_relation(model), "no_cursor_regression") %}
    {%- set proof = strandline.proof_of_rows(model, {"keys": keys, "cursor": cursor, "known": incidents}, row_condition) %}
    {%- set tested = strandline.tested_rows(model, row_condition) %}
    {{ proof.note }}
    {%- if strandline.versions_in_order(proof, tested, keys, cursor) %}
    {{ strandline.nothing_found("cast(null as bigint) as _cq_batch") }}
    {%- else %}
    with versions as (
        select *
        from {{ strandline.asked_keys(proof, tested, keys, cursor, lower=true) }} as versions
        where {{ strandline.quoted(cursor) }} is not null
    ),

    compared as (
        select
            {%- for name in (keys + [cursor]) | unique %}
            {{ strandline.quoted(name) }},
            {%- endfor %}
            _cq_generation,
            _cq_batch,
            _cq_seq,
            _cq_sync_time,
            max(struct({{ strandline.quoted(cursor) }} as at, _cq_generation as generation, _cq_batch as batch))
                over earlier as _cq_newest
        from versions
        window earlier as (
            partition by
                {%- for key in keys %}
                {{ strandline.quoted(key) }}{{ "," if not loop.last }}
                {%- endfor %}
            -- by batch alone: within a batch, versions may come in any order
            order by _cq_batch
            range between unbounded preceding and 1 preceding
        )
    )

    select
        {%- for name in (keys + [cursor]) | unique %}
        {{ strandline.quoted(name) }},
        {%- endfor %}
        _cq_newest.at as newest_cursor,
        _cq_newest.batch as newest_batch,
        _cq_generation,
        _cq_batch,
        _cq_seq,
        _cq_sync_time,
        if(
            _cq_generation > _cq_newest.generation,
            'the cursor went back at the source: this version counts, its generation overrules',
            'an older version came late: the newest cursor counts'
        ) as problem
    from compared
    where {{ strandline.quoted(cursor) }} < _cq_newest.at
        and {{ strandline.not_acknowledged(incidents, "_cq_batch") }}
    {%- endif %}
    {%- endif %}
{%- endmacro %}
