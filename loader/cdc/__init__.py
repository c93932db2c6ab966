"""Change data capture: reads a table's changes from the database's log (`sync_mode: cdc`).

This plug-in of the connector `jdbc` is found by the entry-point group `strandline.capture`. It
loads deletes and every version of a row, without querying the table. A cursor finds no deletes,
and only the newest version of each row.

Debezium's embedded engine decodes the log in a separate process (`debezium/`) and writes the
changes to files. Spark converts these files to rows (`changes.py`, `values.py`).
"""
