"""``python -m nectar``: the command line, where the program ``nectar`` is not on the PATH."""

import sys

from nectar.cli import main

if __name__ == "__main__":
    sys.argv[0] = "nectar"  # a record states the command as it can be typed
    sys.exit(main())
