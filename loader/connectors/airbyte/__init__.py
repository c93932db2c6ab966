"""The connector `airbyte`: any program that speaks the Airbyte protocol."""
