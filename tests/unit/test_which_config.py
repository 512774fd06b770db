"""Which config a command means that is given none."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.device.which_config import is_bare, load, require_written
from routing.errors import LocalError


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return {"PANAL_STORE": str(tmp_path / "data")}


def test_the_one_that_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('name = "x"')
    assert load(tmp_path / "x.toml", environ).name == "x"
    with pytest.raises(LocalError, match="no such config file"):
        load(tmp_path / "y.toml", environ)


def test_this_devices_own(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "node.toml").write_text('name = "own"')
    Path("node.toml").write_text('name = "here"')
    config = load(None, environ)
    assert config.name == "own" and not is_bare(config)
    assert config.identity_path == tmp_path / "data" / "identity.key"


def test_one_that_lies_about_is_not_taken_by_itself(environ: dict[str, str], tmp_path: Path) -> None:
    Path("node.toml").write_text('[engine]\nlibrary = "./evil.so"')
    with pytest.raises(LocalError) as caught:
        load(None, environ)
    assert str(caught.value) == (
        f"{tmp_path}/data/node.toml: no such config file, but there is a node.toml here: use it with "
        f"-c node.toml, or make it this device's own: mv node.toml {tmp_path}/data/node.toml"
    )


def test_what_a_bare_node_cannot_do(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"node.toml: no such config file; panal init writes one"):
        require_written(load(None, environ))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "node.toml").write_text('name = "own"')
    require_written(load(None, environ))


def test_a_bare_node(environ: dict[str, str], tmp_path: Path) -> None:
    config = load(None, environ)
    assert is_bare(config) and config.path == tmp_path / "data" / "node.toml"
    assert config.serve == () and config.backbone is None and config.swarm.lan
    assert config.store == tmp_path / "data"
