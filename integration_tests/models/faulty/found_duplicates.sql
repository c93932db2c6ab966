{{ strandline.duplicates(source("faulty_shop", "raw_orders_faulty"), "id", "updated_at") }}
