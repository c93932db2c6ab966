"""The base of connectors that run a program and read its messages, such as records and states.

The `airbyte` and `singer` connectors extend it. The programs run as child processes. The loader
never imports their code.
"""
