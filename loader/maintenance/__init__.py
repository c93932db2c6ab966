"""`loader compact`: removes superseded versions, small files and old Iceberg snapshots."""
