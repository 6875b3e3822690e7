"""Data sets, their partition over clients, and a site's samples on its device."""

from common.data.catalogue import NAMES, describe
from common.data.counts import class_counts, report
from common.data.dataset import Dataset, DatasetInfo, Split
from common.data.inputs import Samples, samples
from common.data.loading import load
from common.data.partitions import partition
from common.data.stratify import subset, validation_split

__all__ = [
    "NAMES",
    "Dataset",
    "DatasetInfo",
    "Samples",
    "Split",
    "class_counts",
    "describe",
    "load",
    "partition",
    "report",
    "samples",
    "subset",
    "validation_split",
]
