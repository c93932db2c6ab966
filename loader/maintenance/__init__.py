"""Implements `loader compact` and `loader state rebuild`."""
