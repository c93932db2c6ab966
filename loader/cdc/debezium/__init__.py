"""Debezium's embedded engine, in a separate process because its Java libraries conflict with Spark.

`engine.py` starts the process, `program.py` runs in it, and `spool.py` defines its output files.
"""
