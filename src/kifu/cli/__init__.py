"""The command `kifu`: thin. Each command parses, calls one function and prints."""

from kifu.cli.app import app, main

__all__ = ["app", "main"]
