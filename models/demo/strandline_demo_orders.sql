{{
    config(
        enabled=(project_name == "strandline"),
        alias="orders",
        materialized="deduped_latest",
        primary_key=["order_id"],
        cursor_field="updated_at",
    )
}}

select *
from {{ source("shop", "orders") }}
