"""The selection of rows to read, and the order and comparison of row versions."""
