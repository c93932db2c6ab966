{% test duplicate_in_batch(model, primary_key=none, cursor_field=none, row_condition=none) %}
    {{ config(severity="warn") }}
    {%- set keys = strandline.tested_optional_key(model, primary_key) %}
    with duplicates as (
        {{ strandline.duplicates(
            strandline.tested_rows(model, row_condition), keys, strandline.tested_cursor(model, cursor_field)
        ) }}
    )

    select *
    from duplicates
    where duplicate_kind = 'in_batch'
{% endtest %}
