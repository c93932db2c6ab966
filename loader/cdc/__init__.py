"""Change data capture: reads a table's changes from the database's log (`sync_mode: cdc`).

The `jdbc` connector finds this plug-in through the `strandline.capture` entry-point group. The log
contains deletes and every version of a row, and it can be read without querying the table. In
contrast, a sync with a cursor finds no deletes, and only the newest version of each row.

Debezium's embedded engine runs in a separate process (`debezium/`). It decodes the log and writes
the changes to files. Spark converts these files to rows (`changes.py`, `values.py`).
"""
