{{ strandline.newest_refresh(source("shop", "raw_customers")) }}
