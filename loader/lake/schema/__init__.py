"""How raw tables follow their source's columns."""
