{{ config(materialized="deduped_latest", unique_key="id", meta={"strandline": {"cursor_field": "updated_at"}}) }}

select *
from {{ source("shop", "raw_orders") }}
