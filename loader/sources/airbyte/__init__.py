"""The connector `airbyte`: any program that speaks the Airbyte protocol."""

from loader.sources.airbyte.source import AirbyteSource

__all__ = ["AirbyteSource"]
