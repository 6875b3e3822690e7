"""Where things lie that tests look at."""

from pathlib import Path

#: the repository
ROOT = Path(__file__).resolve().parents[2]

#: these helpers, for scripts that tests start
HELPERS = Path(__file__).resolve().parent
