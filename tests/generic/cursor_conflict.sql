{% test cursor_conflict(model, primary_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="error") }}
    {%- set keys = strandline.tested_key(model, primary_key, "cursor_conflict") %}
    {%- set cursor = strandline.tested_order(model, cursor_field, "cursor_conflict") %}
    with conflicts as (
        {{ strandline.duplicates(strandline.tested_rows(model, row_condition), keys, cursor) }}
    )

    select *
    from conflicts
    where duplicate_kind = 'conflict'
        -- a null cursor claims no order: the later batch is the latest by right
        and {{ strandline.quoted(cursor) }} is not null
{% endtest %}
