"""`nectar export`: a run's model and synthetic images as a folder that needs no Nectar."""

from __future__ import annotations

from pathlib import Path

from common.errors import ConfigError
from nectar.outputs import output_folder
from nectar.words import take_options

SUMMARY = "write a run's model and synthetic images for use without Nectar"

USAGE = """\
Usage: nectar export RUN [--output DIR] [--best]

Writes the newest model of the run recorded in the directory RUN as safetensors, with what plain PyTorch needs to
load it, and the images that its sites sent as PNG files in a folder a class and as one npz. A run that is not over
gives what it has so far.

  --output DIR   the folder to make (default: export/round-005 or so in RUN); never one that is there
  --best         the round with the best accuracy on the validation share instead of the newest

  nectar export ~/nectar/runs/20260722-101500-feddm-digits-seed0-1a2b3c --output digits-model
"""


def main(words: list[str]) -> int:
    """Export what `words` say; return the exit code."""
    options, rest = take_options(words, flags=("--best",), values=("--output",))
    if len(rest) != 1:
        raise ConfigError("nectar export takes one run: the directory that the run printed.")
    output = output_folder(options["--output"], fresh=True) if "--output" in options else None
    from nectar.export.bundle import export
    from nectar.past_run import PastRun

    past = PastRun.open(Path(rest[0]))
    done = export(past, output, best="--best" in options)
    run, figures = done.about["run"], done.about["figures"]["test"]
    accuracy = f", test accuracy {figures['accuracy']:.4f}" if figures else ""
    print(f"the model of round {run['round']} of {run['rounds']}{accuracy}: {done.folder}")
    if not past.completed:
        print(f"the run is not complete ({run['outcome']}): this is its newest checkpoint's state")
    if done.images:
        print(f"{done.images} images that the sites sent: {done.folder / 'synthetic'}")
        print(done.nature)
    else:
        print("the method sends no images, so there is no synthetic set")
    return 0
