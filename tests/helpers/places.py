"""Where things lie that tests look at."""

from pathlib import Path

#: the repository
ROOT = Path(__file__).resolve().parents[2]

#: these helpers, for scripts that tests start
HELPERS = Path(__file__).resolve().parent


def contents(directory: Path) -> dict[str, bytes]:
    """Return a record's files; the lock of the process that writes it belongs to its machine."""
    return {
        p.relative_to(directory).as_posix(): p.read_bytes()
        for p in directory.rglob("*")
        if p.is_file() and not p.name.startswith(".writer.")
    }
