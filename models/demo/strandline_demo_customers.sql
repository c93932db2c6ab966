{{
    config(
        enabled=(project_name == "strandline"),
        alias="customers",
        materialized="deduped_latest",
        primary_key=["customer_id"],
        cursor_field="updated_at",
    )
}}

select *
from {{ source("shop", "customers") }}
