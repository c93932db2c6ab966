"""Change data capture: reads a table's changes from the database's log (`sync_mode: cdc`).

Debezium's embedded engine decodes the log in a process of its own (`engine.py`, `program.py`) and
spools the changes to files (`spool.py`), which Spark turns into rows (`changes.py`, `values.py`).
"""
