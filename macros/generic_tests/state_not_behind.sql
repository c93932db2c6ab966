{% test state_not_behind(model, grace_minutes=10) %}
    {{ config(severity="warn") }}
    {{ adapter.dispatch("test_state_not_behind", "strandline")(model, grace_minutes) }}
{% endtest %}


{% macro spark__test_state_not_behind(model, grace_minutes) -%}
    {%- set raw = strandline.tested_table(model, "state_not_behind") if strandline.testing() else none %}
    {%- set state = strandline.state_of(raw) if raw else none %}
    {%- if state is none %}
        select cast(null as string) as table_name where false
    {%- elif not strandline.exists(state) %}
    {{ strandline.missing_state(state) }}
    {%- else %}
    {%- if strandline.not_behind_at_a_glance(raw, state) %}
    {{ strandline.nothing_found("cast(null as string) as table_name") }}
    {%- else %}
    {#- Reads the data first, then the state: what a running sync adds to the state in between does no harm. #}
    {%- set properties = strandline.table_properties(raw) %}
    {%- set snapshot = strandline.snapshot_in(properties) %}
    {%- set data = raw ~ (" version as of " ~ snapshot if snapshot else "") %}
    {%- set head = strandline.head_told({"relation": raw, "snapshot": snapshot}) if snapshot else none %}
    {%- set shared = strandline.sharers_in(properties) | length > 0 %}
    with data as (
        select
            max(_cq_batch) as raw_batch,
            {%- if shared %}
            -- batches are numbered per table: the one before a source's newest may be another source's
            get(sort_array(collect_set(_cq_batch), false), 1) as batch_before,
            _cq_source_name as source_name
            {%- else %}
            max(_cq_batch) - 1 as batch_before,
            max_by(_cq_source_name, _cq_batch) as source_name
            {%- endif %}
        from {{ data }} as versions
        {%- if shared %}
        group by _cq_source_name
        {%- elif head is not none %}
        -- only the newest batch counts: Iceberg prunes the files of all others
        where _cq_batch >= {{ head }}
        {%- endif %}
    ),

    -- when the head was published: a sync does so a moment before it stores the state
    head as (
        select max(made_current_at) as published_at
        from {{ raw }}.history as history
        where is_current_ancestor
    ),

    states as (
        select
            {{ strandline.state_table_name("key") }} as table_name,
            substring_index(key, '.', 1) as source_name,
            max(cast(get_json_object(value, '$.batch') as bigint)) as state_batch,
            max(coalesce(version, 0)) as version
        from {{ state }} as state
        group by key
    ),

    judged as (
        select
            {{ strandline.text_literal(raw.identifier) }} as table_name,
            data.source_name,
            data.raw_batch,
            states.state_batch,
            states.version,
            head.published_at,
            case
                when data.raw_batch is null then cast(null as string)
                when states.state_batch is null and data.batch_before > 0 then 'data without any state'
                when coalesce(states.state_batch, 0) < data.batch_before then 'several batches without state'
                when coalesce(states.state_batch, 0) < data.raw_batch
                    and head.published_at < current_timestamp() - interval {{ grace_minutes }} minutes
                    then 'the newest batch without state: the next run recovers it'
            end as problem
        from data
        cross join head
        left join states
            on states.table_name = {{ strandline.text_literal(raw.identifier) }}
            and states.source_name = data.source_name
    )

    select *
    from judged
    where problem is not null
    {%- endif %}
    {%- endif %}
{%- endmacro %}
