"""`panal swarm`: from a name to a member, and each way in which that is refused."""

from __future__ import annotations

import json
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.config import load_config
from node.swarm_files import SwarmKey
from routing.identity import Identity, PeerId
from routing.invitation import Invitation
from routing.membership import OPEN_SWARM, MemberCertificate, check_member
from tests.ready_panal import run_panal

STRANGER = "12D3KooWAkiRhEHk2yFAbqK2YdPZe21NLozHxDLpmJ9Vo9eq6FAE"
ADDRESS = f"/ip4/192.0.2.7/udp/4190/quic-v1/p2p/{STRANGER}"
RELAY = f"/dns4/relay.example.org/tcp/443/tls/ws/p2p/{STRANGER}"


def panal(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_panal(*arguments)


def done(*arguments: object) -> dict[str, Any]:
    """A command that must work, and its JSON."""
    result = panal(*arguments, "--json")
    assert result.returncode == 0, result
    assert len(result.stdout.splitlines()) == 1 and result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def refused(result: subprocess.CompletedProcess[str], *named: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr with all of `named` in it."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("panal"), result.stderr
    for text in named:
        assert text in lines[0], lines[0]


@dataclass(frozen=True)
class House:
    """A folder with a swarm's key and a node."""

    folder: Path
    key: Path
    config: Path
    peer_id: PeerId

    def invite(self, *arguments: object) -> str:
        line: str = done("swarm", "invite", self.peer_id, "--key", self.key, *arguments)["invite"]
        return line

    def unchanged(self) -> bool:
        return load_config(self.config).swarm.swarm == OPEN_SWARM and not self.member.exists()

    @property
    def member(self) -> Path:
        return self.config.parent / "store" / "identity.member"


@pytest.fixture
def house(tmp_path: Path) -> House:
    SwarmKey.create("casa", tmp_path / "swarm.key")
    config = tmp_path / "node" / "node.toml"
    identity = Identity.load_or_create(config.parent / "store" / "identity.key")
    config.write_text(f'# mine\nstore = "store"\n[swarm]\n# where\npeers = [\n  "{ADDRESS}", # Beto\n]\n')
    return House(tmp_path, tmp_path / "swarm.key", config, identity.peer_id)


def test_from_a_name_to_a_member(tmp_path: Path) -> None:
    made = done("swarm", "create", "casa de Ana", "--dir", tmp_path / "keys")
    key_file = Path(made["key_file"])
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    config = tmp_path / "node" / "node.toml"
    assert panal("init", "--dir", config.parent).returncode == 0
    before = done("swarm", "show", "-c", config)
    assert before["name"] == "panal" and not before["private"] and before["member_until"] is None
    peer_id = before["peer_id"]

    invite = done(
        "swarm", "invite", peer_id, "--key", key_file, "--days", "7", "--peer", ADDRESS, "--peer", RELAY
    )
    assert invite["peer_id"] == peer_id and invite["id"] == made["id"]
    text = config.read_text()
    joined = done("swarm", "join", invite["invite"], "-c", config)
    assert joined["peers_added"] == [ADDRESS, RELAY]
    assert joined["member_until"] == invite["valid_until"]
    member = Path(joined["member"])
    assert stat.S_IMODE(member.stat().st_mode) == 0o600

    after = done("swarm", "show", "-c", config)
    assert after["name"] == "casa de Ana" and after["private"] and after["problem"] is None
    assert after["id"] == made["id"] and after["key"] == made["key"]
    assert after["member_until"] == invite["valid_until"]
    read = load_config(config)
    assert read.swarm.member == member
    assert check_member(read.swarm.swarm, member.read_bytes(), peer_id, time.time()) == ""
    assert [str(each) for each in read.swarm.peers] == [ADDRESS]
    assert [str(each) for each in read.swarm.control_peers] == [RELAY]
    lost = [line for line in text.splitlines() if line not in config.read_text().splitlines()]
    assert lost == ["peers = []"], "comments and all else stay"


def test_what_a_person_reads(house: House) -> None:
    made = panal("swarm", "create", "otra", "--dir", house.folder / "otra")
    assert made.returncode == 0 and "keep a copy" in made.stdout and "panal swarm invite" in made.stdout
    invited = panal("swarm", "invite", house.peer_id, "--key", house.key)
    assert len(invited.stdout.splitlines()) == 1 and invited.stdout.startswith("panal-invite:")
    assert "valid until" in invited.stderr
    joined = panal("swarm", "join", invited.stdout, "-c", house.config)
    assert joined.returncode == 0 and "started again" in joined.stdout
    shown = panal("swarm", "show", "-c", house.config)
    assert "casa, private" in shown.stdout and "until 20" in shown.stdout and house.peer_id in shown.stdout
    told = panal("swarm", "--help")
    assert "The key never leaves the machine" in told.stdout and "useless to anybody else" in told.stdout


def test_a_second_invitation_prolongs(house: House) -> None:
    done("swarm", "join", house.invite("--days", 7), "-c", house.config)
    first = house.config.read_text()
    joined = done("swarm", "join", house.invite("--days", 30, "--peer", ADDRESS), "-c", house.config)
    assert joined["peers_added"] == [], "the config has it"
    assert house.config.read_text() == first
    left = done("swarm", "show", "-c", house.config)["member_until"] - time.time()
    assert 29 < left / 86400 <= 30


def test_another_swarm_is_not_left_unasked(house: House) -> None:
    done("swarm", "join", house.invite(), "-c", house.config)
    other = SwarmKey.create("otra", house.folder / "other.key")
    line = done("swarm", "invite", house.peer_id, "--key", house.folder / "other.key", "--peer", RELAY)[
        "invite"
    ]
    before = (house.config.read_text(), house.member.read_bytes())
    refused(panal("swarm", "join", line, "-c", house.config), "'casa'", "--replace", "'otra'")
    assert (house.config.read_text(), house.member.read_bytes()) == before
    done("swarm", "join", line, "-c", house.config, "--replace")
    read = load_config(house.config).swarm
    assert read.swarm == other.swarm
    assert not read.peers and [str(each) for each in read.control_peers] == [RELAY]
    assert house.config.read_text().startswith("# mine\n")


def test_create_refuses(house: House) -> None:
    key = house.key.read_bytes()
    refused(panal("swarm", "create", "casa", "--dir", house.folder), "swarm.key", "exists already")
    assert house.key.read_bytes() == key
    for name in ("", "x" * 41, "a\nb", " casa"):
        refused(panal("swarm", "create", name, "--dir", house.folder / "new"), "1 to 40 printable")
    refused(panal("swarm", "create", "casa", "--dir", house.config), "can't be written")
    assert not (house.folder / "new" / "swarm.key").exists()


@pytest.mark.slow
def test_invite_refuses(house: House) -> None:
    def invite(*arguments: object, key: Path = house.key) -> subprocess.CompletedProcess[str]:
        return panal("swarm", "invite", "--key", key, *arguments)

    refused(invite(house.peer_id[:-1]), "51 characters, 52 are needed")
    refused(invite(house.peer_id, key=house.folder / "none.key"), "none.key", "does not exist")
    refused(invite(house.peer_id, key=house.config), "node.toml", "open to other users", "chmod 600")
    refused(invite(house.peer_id, key=house.folder), "not a regular file")
    junk = house.folder / "junk.key"
    for content in (
        b"",
        b"\xff\xfe",
        b"name = 'x'",
        b"name = 'x'\nkey = 'zz'",
        b"key = 5\nname = 5",
        b"#" * 9999,
    ):
        junk.write_bytes(content)
        junk.chmod(0o600)
        refused(invite(house.peer_id, key=junk), "junk.key", "not a swarm key")
    for days in ("0", "3651", "-1", "x"):
        refused(invite(house.peer_id, f"--days={days}"), "--days")
    refused(invite(house.peer_id, "--peer", ADDRESS.rpartition("/p2p/")[0]), "--peer", "/p2p/PEER-ID")
    many = [f"--peer={ADDRESS.replace('4190', str(5000 + n))}" for n in range(9)]
    refused(invite(house.peer_id, *many), "9 addresses")


def made_at(house: House, when: float, days: int) -> str:
    key = SwarmKey.load(house.key)
    certificate = MemberCertificate.issue(key.private_key, key.swarm, house.peer_id, when, days)
    return Invitation(key.swarm, certificate).encode(key.private_key)


@pytest.mark.slow
def test_join_refuses_and_then_writes_nothing(house: House) -> None:
    def join(line: str, config: Path = house.config) -> subprocess.CompletedProcess[str]:
        return panal("swarm", "join", line, "-c", config)

    line = house.invite()
    text = house.config.read_text()
    theirs = done("swarm", "invite", STRANGER, "--key", house.key)["invite"]
    refused(join(theirs), f"is for {STRANGER}", house.peer_id)
    refused(join(made_at(house, time.time() - 10 * 86400, 3)), "expired on", "ask for a new invitation")
    refused(join(made_at(house, time.time() + 86400, 3)), "in the future", "clocks")
    refused(join(line[:-1]), "damaged or incomplete")
    refused(join(line[:40] + ("A" if line[40] != "A" else "B") + line[41:]), "invitation")
    refused(join("hola"), "not a panal invitation")
    refused(join(line, house.folder / "none.toml"), "none.toml", "panal init")
    assert house.config.read_text() == text and house.unchanged()

    inline = house.config.with_name("inline.toml")
    inline.write_text('store = "store"\nswarm = { lan = false }\n')
    refused(join(line, inline), "inline.toml", "set by hand", 'name = "casa"')
    nobody = house.config.with_name("nobody.toml")
    nobody.write_text('store = "nowhere"\n')
    refused(join(line, nobody), "identity.key", "does not exist")
    assert house.unchanged()
    assert sorted(each.name for each in house.config.parent.iterdir()) == [
        "inline.toml", "nobody.toml", "node.toml", "store",
    ]  # fmt: skip


def test_show_says_what_is_wrong(house: House) -> None:
    done("swarm", "join", house.invite("--days", 1), "-c", house.config)
    key = SwarmKey.load(house.key)
    old = MemberCertificate.issue(key.private_key, key.swarm, house.peer_id, time.time() - 5 * 86400, 1)
    for content, words in (
        (old.encode(), "expired on"),
        (b"junk", "malformed"),
        (b"", "no member certificate"),
    ):
        house.member.write_bytes(content)
        told = panal("swarm", "show", "-c", house.config, "--json")
        report = json.loads(told.stdout)
        assert told.returncode == 1 and words in report["problem"]
        shown = panal("swarm", "show", "-c", house.config)
        assert shown.returncode == 1 and f"NO: this node {report['problem']}" in shown.stdout
    house.member.unlink()
    refused(panal("swarm", "show", "-c", house.config), "identity.member", "panal swarm join writes it")


def test_a_config_behind_a_link_and_with_windows_line_ends(house: House) -> None:
    real = house.folder / "elsewhere.toml"
    real.write_bytes(b'\xef\xbb\xbfstore = "node/store"\r\n[swarm]\r\nlan = false\r\n')
    real.chmod(0o640)
    link = house.folder / "link.toml"
    link.symlink_to(real)
    done("swarm", "join", house.invite(), "-c", link)
    assert link.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    data = real.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") == 6
    assert load_config(link).swarm.swarm.name == "casa"
