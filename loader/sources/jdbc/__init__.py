"""The `jdbc` connector, which reads tables from any database that has a JDBC driver."""

from loader.sources.jdbc.source import JdbcSource

__all__ = ["JdbcSource"]
