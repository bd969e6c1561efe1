"""`python -m trouper.cli` is `trouper`."""

import sys

from trouper.cli import main

sys.exit(main())
