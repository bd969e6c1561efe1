"""`python -m trouper` is `trouper`."""

from trouper.cli import run_module

if __name__ == "__main__":
    run_module()
