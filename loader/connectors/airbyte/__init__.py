"""The connector `airbyte`: any program that speaks the Airbyte protocol.

Worth having for APIs: Airbyte has connectors for hundreds, and a manifest describes any other one.
"""
