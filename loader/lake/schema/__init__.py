"""Schema evolution: raw tables follow their source's columns."""
