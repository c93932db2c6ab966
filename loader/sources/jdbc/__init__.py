"""The connector `jdbc`: any database with a driver, and late rows where its open work is seen."""

from loader.sources.jdbc.source import JdbcSource

__all__ = ["JdbcSource"]
