"""The command line, with one module for each command or pair of commands."""

from loader.cli.app import main as main
