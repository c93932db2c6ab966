"""The connector `singer`: any tap.

Worth having where a tap exists, and Airbyte has no connector.
"""
