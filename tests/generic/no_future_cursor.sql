{% test no_future_cursor(model, cursor_field=none, tolerance=none, row_condition=none) %}
    {{ config(severity="error") }}
    {%- set cursor = strandline.tested_time(model, cursor_field, "no_future_cursor") %}
    {%- if not execute %}
        select cast(null as bigint) as _cq_batch where false
    {%- else %}
    {%- set at = "cast(" ~ strandline.quoted(cursor) ~ " as timestamp)" %}
    with versions as (
        select *
        from {{ strandline.tested_rows(model, row_condition) }} as versions
    )

    select
        *,
        timestampdiff(second, _cq_sync_time, {{ at }}) as seconds_ahead
    from versions
    {%- if tolerance is not none %}
    where {{ at }} > _cq_sync_time + interval {{ strandline.text_literal(tolerance) }}
    {%- else %}
    -- clocks differ by minutes; a date or a wall clock also by a zone that nobody wrote down
    where {{ at }} > _cq_sync_time
        + if(typeof({{ strandline.quoted(cursor) }}) = 'timestamp', interval '5 minutes', interval '14 hours')
    {%- endif %}
    {%- endif %}
{% endtest %}
