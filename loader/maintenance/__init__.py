"""`loader compact`: superseded versions, small files and old snapshots leave the lake."""
