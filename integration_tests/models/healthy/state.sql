{{ strandline.current_state(source("shop", "_cq_state")) }}
