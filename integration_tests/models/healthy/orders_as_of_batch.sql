{{ strandline.deduped_latest(source("shop", "raw_orders"), "id", "updated_at", as_of=2) }}
