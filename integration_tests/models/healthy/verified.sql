select
    table_name,
    verified_until
from {{ ref("strandline", "cq_freshness") }}
