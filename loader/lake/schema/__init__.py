"""How raw tables follow the columns of their source."""
