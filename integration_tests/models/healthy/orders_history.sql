{{ strandline.deduped_history(source("shop", "raw_orders"), "id", "updated_at") }}
