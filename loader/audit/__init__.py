"""Compares tables that other tools load with their source; `loader audit`."""
