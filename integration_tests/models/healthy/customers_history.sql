{{ strandline.deduped_history(source("shop", "raw_customers"), "id", "updated_at", delete_stale=true) }}
