"""What the loader runs on: dbt's profile, Java, Spark, drivers, the class archive."""
