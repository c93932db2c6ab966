"""`loader codegen`: generates dbt sources, models and tests for the synced tables."""
