"""The `airbyte` connector, which runs any program that uses the Airbyte protocol.

Airbyte has connectors for hundreds of APIs. Other APIs can be described by a manifest in YAML.
"""
