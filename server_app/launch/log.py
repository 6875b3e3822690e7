"""The run's log as the terminal shows it: Flower's lines, without Flower's and Ray's small talk."""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = r"(?:\(\w+ pid=\d+\) )?(?:INFO|WARNING)\s*:\s*"

# Whole lines, never parts of one, and none at the level of an error: a line that is not known to
# be idle is shown.
_IDLE = re.compile(
    "|".join(
        [
            rf"{_LEVEL}$",
            rf"{_LEVEL}Starting logstream for run_id `\d+`$",
            rf"{_LEVEL}Starting Flower Simulation$",
            rf"{_LEVEL}Since flwr 1\.32, default simulated SuperNodes changed from 10 to 2\.$",
            rf"{_LEVEL}Federation `[^`]*` \(\d+ simulated SuperNodes\)$",
            rf"{_LEVEL}To change federation size, use the following command:$",
            rf"{_LEVEL}flwr federation simulation-config .*$",
            rf"{_LEVEL}Manually terminating ClientAppActor(?: \[repeated .*)?$",
            r"(?:\(\w*\s*pid=\d+\) )?\[mutex\.cc : \d+\] RAW: .*$",
            r"Using SuperLink: .*$",
            r"Successfully installed \S+ to \S+$",
            r".*FutureWarning: Tip: In future versions of Ray, Ray will no longer override "
            r"accelerator visible devices env var .*$",
        ]
    )
)
_WARNING_SOURCE = re.compile(r"\s+warnings\.warn\($")


def plain(line: str) -> str:
    """Give `line` without terminal colours."""
    return _COLOUR.sub("", line)


class NoiseFilter:
    """Says line by line what is worth showing; remembers a cut warning for its second line."""

    def __init__(self) -> None:
        self._after_warning = False

    def shows(self, line: str) -> bool:
        """Tell whether `line` (with or without its line end and colours) carries information."""
        text = plain(line).rstrip()
        source_line = self._after_warning and _WARNING_SOURCE.match(text) is not None
        idle = source_line or _IDLE.match(text) is not None
        self._after_warning = idle and "FutureWarning" in text
        return not idle
