"""Data sets, their partition over clients, and a site's samples on its device."""

from common.data.catalogue import NAMES, describe
from common.data.counts import class_counts, report
from common.data.dataset import Dataset, DatasetInfo, Skipped, Split
from common.data.folder import account, by_reason
from common.data.inputs import Samples, samples
from common.data.loading import load, load_site
from common.data.partitions import partition
from common.data.stratify import subset, validation_split

__all__ = [
    "NAMES",
    "Dataset",
    "DatasetInfo",
    "Samples",
    "Skipped",
    "Split",
    "account",
    "by_reason",
    "class_counts",
    "describe",
    "load",
    "load_site",
    "partition",
    "report",
    "samples",
    "subset",
    "validation_split",
]
