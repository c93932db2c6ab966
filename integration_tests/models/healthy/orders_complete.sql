select *
from {{ ref("orders_latest") }}
where updated_at is null
    or updated_at < {{ strandline.complete_until(source("shop", "raw_orders")) }}
