"""Two of scikit-learn's tables, scaled by their published ranges, and 600 made series with random phases.

    python examples/own_tables.py

writes cancer.csv, wine.csv, a settings file for each, and waves.npz into the current folder.
"""

import csv
import re
from pathlib import Path

import numpy as np
import yaml
from sklearn.datasets import load_breast_cancer, load_wine

for name, load in (("cancer", load_breast_cancer), ("wine", load_wine)):
    data = load()
    with Path(f"{name}.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*data.feature_names, "class"])
        for row, label in zip(data.data, data.target, strict=True):
            lines.writerow([*row.tolist(), data.target_names[label]])
    ranges = re.findall(r"^[^\n=:]+: +([\d.]+) +([\d.]+)", data.DESCR, re.MULTILINE)
    low, high = (",".join(ends) for ends in zip(*ranges, strict=True))
    about = {"file": str(Path(f"{name}.csv").absolute()), "label": "class"}
    scale = {"scale": "minmax", "low": low, "high": high}
    Path(f"{name}.yaml").write_text(yaml.safe_dump({"data": about | scale}))

random = np.random.default_rng(0)
labels = random.integers(0, 3, 600)
turns = (2.0 + labels)[:, None, None] * np.linspace(0, 2 * np.pi, 32)
begins = random.uniform(0, 2 * np.pi, (600, 1, 1)) + np.array([[0.0], [1.0]])
series = np.sin(turns + begins) + 0.5 * random.standard_normal((600, 2, 32))
names = np.array(["slow", "middling", "fast"])[labels]
np.savez("waves.npz", x_train=series, y_train=names, columns=["left", "right"])
