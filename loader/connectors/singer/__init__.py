"""The connector `singer`, which runs any Singer tap.

It is worth having if a tap exists and Airbyte has no connector.
"""
