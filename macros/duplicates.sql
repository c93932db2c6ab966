{% macro duplicates(relation, unique_key=none, cursor_field=none) -%}
    {#- Compares each row with the previously loaded row that has the same key, cursor and
        generation. A value that changes back (A, B, A) is therefore a new version instead of a
        redelivery. A full refresh begins a new generation, so the rows that it rereads are not
        redeliveries. -#}
    {%- set keys = strandline._as_list(unique_key) -%}
    {%- set identity = [] -%}
    {%- for name in (keys + ([cursor_field] if cursor_field else [])) | unique -%}
        {%- do identity.append(strandline._quote(name)) -%}
    {%- endfor -%}
    select *
    from (
        select
            *,
            case
                when previous_row_hash is null then null
                when _cq_deleted <> previous_deleted then null
                when _cq_row_hash <> previous_row_hash and _cq_deleted then null
                when _cq_row_hash <> previous_row_hash then 'conflict'
                when _cq_batch = previous_batch then 'in_batch'
                else 'redelivery'
            end as duplicate_kind
        from (
            select
                {%- for column in identity %}
                {{ column }},
                {%- endfor %}
                _cq_generation,
                _cq_batch,
                _cq_seq,
                _cq_sync_time,
                _cq_row_hash,
                _cq_deleted,
                lag(_cq_batch) over arrival as previous_batch,
                lag(_cq_seq) over arrival as previous_seq,
                lag(_cq_row_hash) over arrival as previous_row_hash,
                lag(_cq_deleted) over arrival as previous_deleted
            from {{ relation }} as versions
            window arrival as (
                partition by {{ (identity if keys else ["_cq_row_hash"]) | join(
                    ", ") }}, _cq_generation
                order by _cq_batch, _cq_seq
            )
        ) as arrivals
    ) as compared
    where duplicate_kind is not null
{%- endmacro %}
