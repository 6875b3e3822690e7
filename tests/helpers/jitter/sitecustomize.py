"""What an interpreter does before anything else if this folder is on its path, as ``--jitter-weights`` puts it."""

import os
import sys

if "TESTS_JITTER_SEED" in os.environ:
    helpers = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - without pathlib
    sys.path.append(helpers)
    import weights_jitter

    sys.path.remove(helpers)
    weights_jitter.install()
