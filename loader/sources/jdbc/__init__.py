"""The `jdbc` connector. It reads tables of any database with a JDBC driver."""

from loader.sources.jdbc.source import JdbcSource

__all__ = ["JdbcSource"]
