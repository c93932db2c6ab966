"""Sets up dbt's profile, Java, Spark, JDBC drivers and the class archive."""
