"""Connectors that are programs of their own: child processes whose messages are records and states.

`airbyte` and `singer` share what is here. Nothing of such a program is imported into the loader.
"""
