"""Lets `python -m goccl` do what the command `goccl` does."""

import sys

from goccl._cli import main

sys.exit(main())
