"""The connector `airbyte`, which runs any program of the Airbyte protocol.

It is worth having for APIs: Airbyte has connectors for hundreds of them, and a manifest in YAML can
describe any other API.
"""
