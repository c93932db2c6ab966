select _cq_table_rank, id, status
from (
    {{ strandline.union_raw([source("shop", "raw_orders"), source("shop", "raw_orders_eu")]) }}
) as versions
