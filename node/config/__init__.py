"""A node's config, one TOML file: its shape as written (`shape`), what it means (`meaning`, which makes
`settings` of it), and the commented file that `panal init` writes (`render`)."""

from __future__ import annotations

from node.config.meaning import default_store, load_config, parse_config
from node.config.render import render_config
from node.config.settings import (
    BackboneConfig,
    ConfigError,
    DeviceConfig,
    EngineConfig,
    HomeConfig,
    HttpConfig,
    MarketConfig,
    ModelRef,
    NodeConfig,
    RelayConfig,
    ServeConfig,
    SwarmConfig,
)

__all__ = [
    "BackboneConfig",
    "ConfigError",
    "DeviceConfig",
    "EngineConfig",
    "HomeConfig",
    "HttpConfig",
    "MarketConfig",
    "ModelRef",
    "NodeConfig",
    "RelayConfig",
    "ServeConfig",
    "SwarmConfig",
    "default_store",
    "load_config",
    "parse_config",
    "render_config",
]
