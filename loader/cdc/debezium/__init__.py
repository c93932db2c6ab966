"""Runs Debezium's embedded engine in a separate process.

A separate process is necessary because Debezium's Java libraries conflict with Spark's.
`launcher.py` starts the process, `program.py` runs in it, and `spool.py` defines its output files.
"""
