{{
    config(
        enabled=(project_name == "strandline"),
        alias="order_items",
        materialized="deduped_latest",
        primary_key=["order_id", "line_no"],
        cursor_field="updated_at",
    )
}}

select *
from {{ source("shop", "order_items") }}
