"""What methods need whose sites have models of their own: these are judged where they are."""

from collections.abc import Mapping
from typing import Any

AT_SITES: Mapping[str, Any] = {"evaluation.on": "sites", "data.site_holdout": 0.25}
"""PFLlib's split, too: three quarters of a site's examples to learn from, a quarter to judge by."""

OWN_MODELS = ("fedper", "fedrep", "fedbn", "ditto", "finetune", "fedmd")
"""The methods whose sites have models of their own, which no other method has inside it."""
