"""Handles snapshots, open transactions, failovers and late rows in PostgreSQL."""
