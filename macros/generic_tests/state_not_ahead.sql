{% test state_not_ahead(model, cursor_field=none) %}
    {{ config(severity="error") }}
    {{ adapter.dispatch("test_state_not_ahead", "strandline")(model, cursor_field) }}
{% endtest %}


{% macro spark__test_state_not_ahead(model, cursor_field) -%}
    {%- set raw = strandline.tested_table(model, "state_not_ahead") if strandline.testing() else none %}
    {%- set state = strandline.state_of(raw) if raw else none %}
    {%- if state is none %}
        select cast(null as string) as table_name where false
    {%- elif not strandline.exists(state) %}
    {{ strandline.missing_state(state) }}
    {%- else %}
    {%- set cursor = strandline.tested_cursor(raw, cursor_field) %}
    {%- if strandline.not_ahead_at_a_glance(raw, state, cursor) %}
    {{ strandline.nothing_found("cast(null as string) as table_name") }}
    {%- else %}
    {#- Reads the state first, then the data: a running sync can only add data in between. #}
    {%- set state = strandline.pinned(state) %}
    {%- set field = cursor or strandline.stored_cursor(state, raw.identifier) %}
    {%- set type = strandline.column_type(raw, field or "") %}
    {%- set shared = strandline.sharers(raw) | length > 0 %}
    {%- set blinded = strandline.blinded(raw, field, type) %}
    with states as (
        select
            key,
            value,
            coalesce(version, 0) as version,
            updated_at,
            cast(get_json_object(value, '$.batch') as bigint) as state_batch,
            get_json_object(value, '$.cursor') as state_cursor,
            get_json_object(value, '$.cursor_field') as state_cursor_field,
            -- all rows of the newest version: if there are two, a reader may trust either
            rank() over (partition by key order by coalesce(version, 0) desc) as age
        from {{ state }} as state
        where {{ strandline.state_table_name("key") }} = {{ strandline.text_literal(raw.identifier) }}
    ),

    data as (
        select
            {%- if blinded %}
            -- a row dated in the future does not vouch for the state's cursor
            max(if({{ strandline.dated_ahead(strandline.quoted(field), type) }}, null, {{ strandline.quoted(field) }}))
                as raw_cursor,
            {%- elif type %}
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
    {%- if blinded %}

    -- in that case the cursor stays at the source's clock, which only the commits know
    committed as (
        {{ strandline.committed_states(raw) }}
    ),

    vouched as (
        select
            states.key,
            states.state_batch,
            max({{ strandline.cursor_value("committed.cursor", type) }}) as cursor
        from states
        inner join committed
            on committed.batch <= states.state_batch
            {%- if shared %}
            and committed.source_name = substring_index(states.key, '.', 1)
            {%- endif %}
        group by states.key, states.state_batch
    ),
    {%- endif %}

    known as (
        select
            states.*,
            data.raw_batch,
            {%- if blinded %}
            greatest(data.raw_cursor, vouched.cursor) as raw_cursor
            {%- elif type %}
            data.raw_cursor
            {%- else %}
            cast(null as string) as raw_cursor
            {%- endif %}
        from states
        {%- if shared %}
        left join data
            on substring_index(states.key, '.', 1) = data.source_name
        {%- else %}
        cross join data
        {%- endif %}
        {%- if blinded %}
        left join vouched
            on states.key = vouched.key
            and states.state_batch = vouched.state_batch
        {%- endif %}
        where states.age = 1
    ),

    judged as (
        select
            {{ strandline.text_literal(raw.identifier) }} as table_name,
            key,
            version,
            updated_at,
            value,
            state_batch,
            raw_batch,
            state_cursor,
            {{ strandline.cursor_text("raw_cursor", type) }} as raw_cursor,
            case
                when get_json_object(value, '$') is null or substring(ltrim(value), 1, 1) <> '{'
                    then 'state is not a JSON object'
                when state_batch is null and state_cursor is null then cast(null as string)
                when state_batch is null then 'state holds a cursor but no batch'
                when state_batch > 0 and raw_batch is null then 'state without any raw data'
                when state_batch > raw_batch then 'batch is ahead of the raw data'
                {%- if type %}
                when state_cursor_field <=> {{ strandline.text_literal(field) }}
                    and state_cursor is not null
                    and {{ strandline.cursor_value("state_cursor", type) }} is null
                    then {{ strandline.text_literal("cursor is not a " ~ type) }}
                when state_cursor_field <=> {{ strandline.text_literal(field) }}
                    and {{ strandline.cursor_value("state_cursor", type) }} > raw_cursor
                    then 'cursor is ahead of the raw data'
                {%- endif %}
            end as problem
        from known
    )

    select *
    from judged
    where problem is not null
    {%- endif %}
    {%- endif %}
{%- endmacro %}
