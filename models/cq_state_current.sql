{%- do strandline.check_dispatch() -%}
{%- set state = source("strandline", "_cq_state") -%}
{%- if execute and (flags.EMPTY or not strandline.exists(state)) -%}
    {#- Nothing was synced yet, or --empty: an empty table, so that models that read this one can be built. -#}
    {%- set state = "(" ~ strandline.no_state() ~ ")" -%}
{%- endif -%}
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
