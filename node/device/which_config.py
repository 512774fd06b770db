"""Which config a command means that is given none: this device's own, in the data directory.

A node.toml that lies in the working directory is not taken by itself: configs name libraries that are loaded,
and a folder may be anybody's.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from node.config import NodeConfig, default_store, load_config, parse_config
from routing.errors import LocalError

CONFIG_NAME = "node.toml"


def default_config(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this device's own config is, or would be."""
    return default_store(environ) / CONFIG_NAME


def load(given: Path | None, environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """The config that was named, or this device's own; if it has none, that of a bare node.

    A bare node serves nothing and asks nothing: it is in the swarm, finds others and is found, has its page,
    and can share and get models.

    Raises:
        LocalError: the config cannot be used, or the only one is here and was not named.
    """
    if given is not None:
        return load_config(given, environ)
    path = default_config(environ)
    if path.exists():
        return load_config(path, environ)
    if Path(CONFIG_NAME).is_file():
        raise LocalError(
            f"{path}: no such config file, but there is a {CONFIG_NAME} here: use it with -c {CONFIG_NAME}, "
            f"or make it this device's own: mv {CONFIG_NAME} {shlex.quote(str(path))}"
        )
    return parse_config("", path, default_store(environ))


def require_written(config: NodeConfig) -> None:
    """For what a bare node cannot do.

    Raises:
        LocalError: there is no config file.
    """
    if is_bare(config):
        raise LocalError(f"{config.path}: no such config file; panal init writes one, -c names another")


def is_bare(config: NodeConfig) -> bool:
    """Whether there is no config file."""
    return not config.path.exists()
