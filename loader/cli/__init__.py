"""The command line: a module for each command that has its own."""

from loader.cli.app import main as main
