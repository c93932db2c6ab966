"""Debezium's embedded engine, in a process of its own: its Java libraries collide with Spark's.

`engine.py` starts the process, `program.py` is what it runs, `spool.py` is what it writes.
"""
