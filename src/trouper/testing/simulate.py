"""`python -m trouper.testing.simulate`: the simulator's command line.

Nothing else is in here, and nobody imports it: a module of this name would take the place of the function `trouper.testing.simulate`.
"""

from __future__ import annotations

import sys

from trouper.testing.simulation import main

if __name__ == "__main__":
    sys.exit(main())
