"""Handles exported snapshots, open transactions, failovers and late rows in PostgreSQL."""
