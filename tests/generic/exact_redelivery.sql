{% test exact_redelivery(model, primary_key=none, cursor_field=none, max_share=0, row_condition=none) %}
    {{ config(severity="warn") }}
    {%- set keys = strandline.tested_optional_key(model, primary_key) %}
    {%- set tested = strandline.tested_rows(model, row_condition) %}
    with redeliveries as (
        {{ strandline.duplicates(tested, keys, strandline.tested_cursor(model, cursor_field)) }}
    ),

    total as (
        select count(*) as all_rows
        from {{ tested }} as versions
    ),

    share as (
        select count(*) as redelivered_rows
        from redeliveries
        where duplicate_kind = 'redelivery'
    )

    select redeliveries.*
    from redeliveries
    cross join total
    cross join share
    where redeliveries.duplicate_kind = 'redelivery'
        and share.redelivered_rows > {{ max_share }} * total.all_rows
{% endtest %}
