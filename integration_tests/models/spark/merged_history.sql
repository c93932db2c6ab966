{{ config(materialized="deduped_history", unique_key="id", meta={"strandline": {"cursor_field": "updated_at"}}) }}

select *
from {{ source("shop", "raw_orders") }}
