"""Sets up the runtime: dbt's profile, Java, Spark, drivers, the class archive."""
