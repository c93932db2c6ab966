"""`loader codegen`: generates dbt sources, tests and snapshot models for the synced tables."""
