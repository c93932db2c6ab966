{{ config(post_hook="{{ strandline._store_verdicts('_cq_state') }}") }}
{%- set state = strandline._or_no_rows(source("strandline", "_cq_state"),
    {"string": "key value", "bigint": "version", "timestamp": "updated_at"}) -%}
with state as (
    {{ strandline.current_state(state) }}
)

select
    source_name,
    table_name,
    batch,
    cursor,
    cursor_field,
    cursor_type,
    generation,
    version,
    updated_at,
    key,
    value
from state
