"""The connector `jdbc`: any database with a driver; finds late rows if it can see open work."""

from loader.sources.jdbc.source import JdbcSource

__all__ = ["JdbcSource"]
