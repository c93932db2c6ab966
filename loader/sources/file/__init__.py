"""The `file` connector, which reads CSV, JSON, Parquet and ORC files in a folder."""

from loader.sources.file.source import FileSource

__all__ = ["FileSource"]
