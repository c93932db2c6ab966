"""The connector `airbyte`, which runs any program of the Airbyte protocol.

Airbyte has connectors for hundreds of APIs, and a manifest in YAML can describe any other API.
"""
