{% test latest_matches_raw(model, raw=none, primary_key=none, cursor_field=none) %}
    {{ config(severity="error") }}
    {%- set snapshot = strandline.tested_table(model, "latest_matches_raw") %}
    {%- if not execute %}
        select 'problem' as problem where false
    {%- else %}
    {%- set raw = strandline.tested_source(snapshot, raw, "latest_matches_raw") %}
    {%- set keys = strandline.tested_key(snapshot, primary_key, "latest_matches_raw") %}
    {%- set cursor = strandline.tested_cursor(snapshot, cursor_field) %}
    {%- set covered = strandline.watermark(snapshot) or {"batch": strandline.head_batch(snapshot) or 0} %}
    {#- What a table says that others wrote is believed here: its own rows tell of no batch that only deleted. #}
    {%- set up_to_batch = [covered.batch, covered.get("said", 0)] | max %}
    {%- set raw_columns = adapter.get_columns_in_relation(raw) | map(attribute="name") | map("lower") | list %}
    {%- set compared = [] %}
    {%- for column in adapter.get_columns_in_relation(snapshot) if column.name | lower in raw_columns %}
        {%- do compared.append(column) %}
    {%- endfor %}
    with snapshot as (
        select true as in_snapshot, *
        from {{ strandline.pinned(snapshot) }} as snapshot
    ),

    expected as (
        select true as in_raw, *
        from (
            {{ strandline.deduped_latest(
                strandline.generations_from(raw, covered.get("generation_floor")), keys, cursor, up_to_batch
            ) }}
        ) as latest
    ),

    compared as (
        select
            {%- for key in keys %}
            coalesce(expected.{{ strandline.quoted(key) }}, snapshot.{{ strandline.quoted(key) }}) as {{ strandline.quoted(key) }},
            {%- endfor %}
            {{ up_to_batch }} as up_to_batch,
            expected._cq_batch as expected_batch,
            expected._cq_seq as expected_seq,
            snapshot._cq_batch as snapshot_batch,
            snapshot._cq_seq as snapshot_seq,
            case
                when snapshot.in_snapshot is null then 'missing from the snapshot'
                when expected.in_raw is null then 'not, or deleted, in the raw table'
                else 'differs from the newest version'
            end as problem,
            filter(
                array(
                    {%- for column in compared %}
                    if(
                        {{ strandline.comparable("expected", column) }} <=> {{ strandline.comparable("snapshot", column) }},
                        null,
                        {{ strandline.text_literal(column.name) }}
                    ){{ "," if not loop.last }}
                    {%- endfor %}
                ),
                column_name -> column_name is not null
            ) as differing_columns,
            expected.in_raw and snapshot.in_snapshot as in_both
        from expected
        full outer join snapshot
            on {{ strandline.same_key(keys, "expected", "snapshot") }}
    )

    select *
    from compared
    where not coalesce(in_both, false)
        or size(differing_columns) > 0
    {%- endif %}
{% endtest %}
