"""The base of connectors that run as child processes and send records and states as messages.

The connectors `airbyte` and `singer` extend it. The loader never imports the code of these
programs.
"""
