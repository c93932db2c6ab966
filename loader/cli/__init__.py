"""The command line, with one module for each command."""

from loader.cli.app import main as main
