"""`python -m trouper.cli` is `trouper`."""

from trouper.cli import run_module

run_module()
