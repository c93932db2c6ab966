{{ strandline.deduped_latest(source("shop", "raw_customers"), "id", "updated_at", delete_stale=true) }}
