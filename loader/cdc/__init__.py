"""Change data capture: reads a table's changes from the database's log (`sync_mode: cdc`).

The connector `jdbc` finds this plug-in through the entry-point group `strandline.capture`. The log
contains deletes and every version of a row, and reading the log does not query the table. In
contrast, a sync with a cursor finds no deletes, and it finds only the newest version of each row.

Debezium's embedded engine decodes the log in a separate process (`debezium/`) and writes the
changes to files. Spark converts these files to rows (`changes.py`, `values.py`).
"""
