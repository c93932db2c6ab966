"""Change data capture: reads a table's changes from the database's log (`sync_mode: cdc`).

The log contains deletes and every version of a row. In contrast, a sync with a cursor finds only
the newest version of each row, and no deletes.

The `jdbc` connector loads this plug-in through the `strandline.capture` entry-point group.
Debezium's embedded engine decodes the log in a separate process (`debezium/`) and writes the
changes to files. Spark converts these files to rows (`changes.py`, `values.py`).
"""
