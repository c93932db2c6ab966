"""``python -m loader``."""

from loader.cli import main

main(prog_name="loader")
