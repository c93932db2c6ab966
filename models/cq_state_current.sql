{{ config(post_hook="{{ strandline._store_verdicts('_cq_state') }}") }}
{%- set state = source("strandline", "_cq_state") -%}
{%- if execute and (flags.EMPTY or not strandline._exists(state)) -%}
    {#- Nothing was synced yet: an empty table, so that models that read this one can be built. -#}
    {%- set text = dbt.type_string() -%}
    {%- set state = strandline._no_rows([
        ("key", text), ("value", text), ("version", "bigint"), ("updated_at", "timestamp"),
    ]) -%}
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
