"""The `singer` connector, which runs any Singer tap.

Use it for a source that has a tap but no Airbyte connector.
"""
