"""`loader codegen`: dbt sources, tests and snapshot models for what the loader syncs."""
