"""The ways of MariaDB and MySQL: the work that is open while a table is read."""
