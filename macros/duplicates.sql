{% macro duplicates(relation, primary_key=none, cursor_field=none) -%}
    {{- return(adapter.dispatch("duplicates", "strandline")(relation, primary_key, cursor_field)) -}}
{%- endmacro %}


{% macro spark__duplicates(relation, primary_key, cursor_field) -%}
    {#-
        Compares a row with the version that arrived before it with the same key, cursor and
        generation. So a value that goes back (A, B, A) is a new version, not a redelivery, and a
        full refresh, which reads everything again on purpose, redelivers nothing.
    -#}
    {%- do strandline.check_name(relation | string) -%}
    {%- set keys = [primary_key] if primary_key is string else (primary_key or []) | list -%}
    {%- set identity = [] -%}
    {%- for name in (keys + ([cursor_field] if cursor_field else [])) | unique -%}
        {%- do identity.append(strandline.quoted(name)) -%}
    {%- endfor -%}
    select *
    from (
        select
            *,
            case
                when previous_row_hash is null then cast(null as string)
                when _cq_deleted <> previous_deleted then cast(null as string)
                when _cq_row_hash <> previous_row_hash and _cq_deleted then cast(null as string)
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
                partition by
                    {%- for column in (identity if keys else ["_cq_row_hash"]) %}
                    {{ column }},
                    {%- endfor %}
                    _cq_generation
                order by _cq_batch, _cq_seq
            )
        ) as arrivals
    ) as compared
    where duplicate_kind is not null
{%- endmacro %}
