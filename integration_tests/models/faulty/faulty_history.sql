-- the current version of order 1 is missing
select *
from {{ ref("orders_history") }}
where not (id = 1 and is_current)
