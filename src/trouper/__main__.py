"""`python -m trouper` is `trouper`."""

import sys

from trouper.cli import main

if __name__ == "__main__":
    sys.exit(main())
