{{
    config(
        materialized="deduped_latest",
        unique_key=["order_id"],
        meta={"strandline": {"cursor_field": "updated_at"}},
    )
}}

select *
from {{ source("shop", "orders") }}
