{#- The newest version of each order. Later runs read only the batches that are new. -#}
{{
    config(
        materialized='deduped_latest',
        primary_key=['order_id'],
        cursor_field='updated_at'
    )
}}

select *
from {{ source('shop', 'orders') }}
