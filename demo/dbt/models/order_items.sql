{{
    config(
        materialized="deduped_latest",
        unique_key=["order_id", "line_no"],
        meta={"strandline": {"cursor_field": "updated_at"}},
    )
}}

select *
from {{ source("shop", "order_items") }}
