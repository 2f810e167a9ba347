"""The command `kifu`: thin. Each command parses, calls one function and prints."""

import sys

try:
    from kifu.cli.app import app, main
except KeyboardInterrupt:  # loading takes a moment, and whoever stops a command then wants no traceback
    sys.stderr.write("error: interrupted while the command was loaded; nothing was done. Give the command again.\n")
    sys.exit(130)

__all__ = ["app", "main"]
