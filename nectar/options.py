"""The words and options that several commands take, each a decorator of the command's function."""

from __future__ import annotations

import click

from common.config.keys import TYPED_KEYS
from common.config.tables import experiment_names
from common.methods import METHODS

_RECORD = "the directory that the run printed, the record's id, or latest"


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the words of settings that begin so: methods, experiments, and keys with their ``=``."""
    from common.config.schema import known_keys

    keys = [f"{key}=" for key in (*TYPED_KEYS, *known_keys())]
    words = [*METHODS, *experiment_names(), *keys]
    return [word for word in words if word.startswith(incomplete)]


settings_words = click.argument(
    "words",
    nargs=-1,
    metavar="[EXPERIMENT | METHOD] [KEY=VALUE]...",
    help="settings, as in Hydra",
    shell_complete=complete,
)
config_file_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="a YAML file of settings: a custom experiment (base: NAME starts from another), the output of `nectar "
    "config`, or a record's config.yaml; settings on the command line override it",
)
record = click.argument("named", metavar="RECORD", help=_RECORD)
records = click.argument("named", metavar="RECORD...", help=_RECORD, nargs=-1, required=True)
connection = click.argument(
    "name",
    metavar="CONNECTION",
    help="a name in Flower's config.toml, or HOST:PORT with --ca FILE",
)
ca_option = click.option(
    "--ca", metavar="FILE", help="the authority's certificate, for a connection given as HOST:PORT"
)
insecure_option = click.option(
    "--insecure", is_flag=True, help="connect without TLS, where the SuperLink has none"
)
allow_imports_option = click.option(
    "--allow-imports",
    metavar="MODULES",
    default="",
    help="import user-defined methods, models and data sets only from these modules",
)
