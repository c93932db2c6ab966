{% test state_not_ahead(model, cursor_field=none) %}
    {{ config(severity="error") }}
    {%- set raw = strandline.tested_table(model, "state_not_ahead") %}
    {%- set state = strandline.state_relation(raw.schema) %}
    {%- if not execute or load_relation(state) is none %}
        select cast(null as string) as table_name where false
    {%- else %}
    {#- The state first, then the data: a sync that runs meanwhile only adds data that we may see. #}
    {%- set state = strandline.pinned(state) %}
    {%- set field = strandline.tested_cursor(raw, cursor_field) or strandline.stored_cursor(state, raw.identifier) %}
    {%- set type = strandline.column_type(raw, field or "") %}
    {%- set shared = strandline.sharers(raw) | length > 0 %}
    with states as (
        select
            key,
            value,
            coalesce(version, 0) as version,
            updated_at,
            cast(get_json_object(value, '$.batch') as bigint) as state_batch,
            get_json_object(value, '$.cursor') as state_cursor,
            get_json_object(value, '$.cursor_field') as state_cursor_field,
            -- all rows of the newest version: of two, either may be believed
            rank() over (partition by key order by coalesce(version, 0) desc) as age
        from {{ state }} as state
        where {{ strandline.state_table_name("key") }} = {{ strandline.text_literal(raw.identifier) }}
    ),

    data as (
        select
            {%- if type %}
            max({{ strandline.quoted(field) }}) as raw_cursor,
            {%- endif %}
            max(_cq_batch) as raw_batch
            {%- if shared %},
            _cq_source_name as source_name
            {%- endif %}
        from {{ raw }} as versions
        {%- if shared %}
        group by _cq_source_name
        {%- endif %}
    ),

    judged as (
        select
            {{ strandline.text_literal(raw.identifier) }} as table_name,
            states.key,
            states.version,
            states.updated_at,
            states.value,
            states.state_batch,
            data.raw_batch,
            states.state_cursor,
            {{ "cast(data.raw_cursor as string)" if type else "cast(null as string)" }} as raw_cursor,
            case
                when get_json_object(states.value, '$') is null or substring(ltrim(states.value), 1, 1) <> '{'
                    then 'state is not a JSON object'
                when states.state_batch is null and states.state_cursor is null then cast(null as string)
                when states.state_batch is null then 'state holds a cursor but no batch'
                when states.state_batch > 0 and data.raw_batch is null then 'state without any raw data'
                when states.state_batch > data.raw_batch then 'batch is ahead of the raw data'
                {%- if type %}
                when states.state_cursor_field <=> {{ strandline.text_literal(field) }}
                    and states.state_cursor is not null
                    and cast(states.state_cursor as {{ type }}) is null
                    then {{ strandline.text_literal("cursor is not a " ~ type) }}
                when states.state_cursor_field <=> {{ strandline.text_literal(field) }}
                    and cast(states.state_cursor as {{ type }}) > data.raw_cursor
                    then 'cursor is ahead of the raw data'
                {%- endif %}
            end as problem
        from states
        {%- if shared %}
        left join data
            on substring_index(states.key, '.', 1) = data.source_name
        {%- else %}
        cross join data
        {%- endif %}
        where states.age = 1
    )

    select *
    from judged
    where problem is not null
    {%- endif %}
{% endtest %}
