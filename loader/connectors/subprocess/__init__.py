"""The base classes of connectors that run a program as a child process and read its messages.

The `airbyte` and `singer` connectors extend them. The loader never imports the programs' code.
"""
