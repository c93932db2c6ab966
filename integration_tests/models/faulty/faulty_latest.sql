-- an older version of order 1, order 3 twice, order 5 not at all
select *
from {{ source("faulty_shop", "raw_orders_faulty") }}
where (id = 1 and _cq_batch = 1) or (id in (2, 3, 4) and _cq_batch = 2)
union all
select *
from {{ source("faulty_shop", "raw_orders_faulty") }}
where id = 3
