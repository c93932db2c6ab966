select
    id,
    max_by(status, {{ strandline.version_order("updated_at") }}) as status
from {{ source("shop", "raw_orders") }}
where not _cq_deleted
group by id
