{% test cursor_conflict(model, primary_key=none, cursor_field=none) %}
    {{ config(severity="error") }}
    {%- set keys = strandline.tested_key(model, primary_key, "cursor_conflict") %}
    {%- set cursor = strandline.tested_cursor(model, cursor_field) or "cursor_field" %}
    {%- if execute and not strandline.tested_cursor(model, cursor_field) %}
        {{ exceptions.raise_compiler_error(
            "Test cursor_conflict on " ~ model ~ " needs a cursor_field: give it as an argument or in the source's "
            ~ "config.meta.strandline."
        ) }}
    {%- endif %}
    with conflicts as (
        {{ strandline.duplicates(model, keys, cursor) }}
    )

    select *
    from conflicts
    where duplicate_kind = 'conflict'
        -- a null cursor claims no order: the later batch is the latest by right
        and {{ strandline.quoted(cursor) }} is not null
{% endtest %}
