"""Whether somebody uses the device: what the system tells, and how long it is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.device.device_use import (
    CALM_SECONDS,
    WINDOW_SECONDS,
    CpuTimes,
    DeviceUse,
    Seen,
    UseVerdict,
    parse_cpu_times,
    parse_idle_hint,
    parse_power,
)
from node.device.probing import Probe

STAT = "cpu  100 20 30 1000 7 3 2 50 4 0\ncpu0 1 2 3\nintr 1\n"


def own_stat(user: int, system: int, nice: int) -> str:
    """As in proc(5): the name may hold anything."""
    fields = ["S", *["0"] * 10, str(user), str(system), "0", "0", "20", str(nice), *["0"] * 20]
    return f"17 (a ) b) {' '.join(fields)}\n"


class Machine:
    """Looks at a machine of four cores, a second apart."""

    def __init__(self) -> None:
        self.use = DeviceUse()
        self.now = 0.0
        self.total = self.used = self.own = 0

    def pass_time(self, seconds: int, *, others: float = 0.0, own: float = 0.0, **seen: bool) -> UseVerdict:
        verdict = UseVerdict()
        for _ in range(seconds):
            self.now += 1
            self.total += 400
            self.own += round(400 * own)
            self.used += round(400 * (own + others))
            cpu = CpuTimes(self.total, self.used, self.own)
            verdict = self.use.look(Seen(cpu, seen.get("idle"), seen.get("battery")), self.now)
        return verdict


def idle_machine() -> Machine:
    machine = Machine()
    assert machine.pass_time(5).in_use, "not known to be idle yet"
    assert not machine.pass_time(int(WINDOW_SECONDS)).in_use
    return machine


def test_our_own_work_is_no_use() -> None:
    machine = idle_machine()
    verdict = machine.pass_time(300, own=0.95)
    assert not verdict.in_use and verdict.others == 0.0


def test_in_use_within_the_window_and_idle_after_calm() -> None:
    machine = idle_machine()
    verdict = machine.pass_time(int(WINDOW_SECONDS), others=0.6, own=0.3)
    assert verdict.in_use and verdict.text == "other programs take 60% of the processor"
    assert machine.pass_time(int(CALM_SECONDS), own=0.9).in_use
    assert not machine.pass_time(int(WINDOW_SECONDS) + 1, own=0.9).in_use


def test_between_the_thresholds_it_stays_as_it_was() -> None:
    machine = idle_machine()
    assert not machine.pass_time(600, others=0.3).in_use
    machine.pass_time(30, others=0.9)
    assert machine.pass_time(600, others=0.3).in_use


def test_a_short_burst_is_nobody() -> None:
    machine = idle_machine()
    for _ in range(10):
        assert not machine.pass_time(3, others=0.9).in_use
        assert not machine.pass_time(30).in_use


def test_keyboard_and_mouse_at_once() -> None:
    machine = idle_machine()
    assert machine.pass_time(1, idle=False).text == "keyboard or mouse"
    assert machine.pass_time(int(CALM_SECONDS) - 1, idle=True).in_use
    assert not machine.pass_time(2, idle=True).in_use


def test_battery_comes_and_goes_at_once() -> None:
    machine = idle_machine()
    assert machine.pass_time(1, battery=True).on_battery
    assert not machine.pass_time(1, battery=False).on_battery


def test_what_cannot_be_seen_says_nothing() -> None:
    use = DeviceUse()
    verdict = use.look(Seen(), 0.0)
    assert not verdict.in_use and not verdict.on_battery and not verdict.seen


def test_cpu_times() -> None:
    times = parse_cpu_times(STAT, own_stat(40, 10, 0))
    assert times == CpuTimes(100 + 20 + 30 + 1000 + 7 + 3 + 2 + 50, 100 + 30 + 3 + 2, 50)
    niced = parse_cpu_times(STAT, own_stat(15, 10, 5))
    assert niced is not None and niced.own == 10, "our user time is among the nice time, which does not count"


@pytest.mark.parametrize("stat", ["", "cpu  1 2\n", "cpu  a b c d e f g h\n"])
@pytest.mark.parametrize("own", ["", "17 (x S 1", own_stat(1, 1, 0)])
def test_cpu_times_of_another_system(stat: str, own: str) -> None:
    assert parse_cpu_times(stat, own) is None


@pytest.mark.parametrize(
    ("told", "idle"),
    [
        ("IdleHint=yes\nIdleSinceHint=1796000000000000\n", True),
        ("IdleHint=no\nIdleSinceHint=1796000000000000\n", False),
        ("IdleHint=no\nIdleSinceHint=0\n", None),
        ("", None),
        ("no such thing", None),
    ],
)
def test_idle_hint(told: str, idle: bool | None) -> None:
    assert parse_idle_hint(told) is idle


BATTERY = {"type": "Battery", "status": "Discharging", "scope": ""}
MOUSE = {"type": "Battery", "status": "Discharging", "scope": "Device"}


@pytest.mark.parametrize(
    ("supplies", "on_battery"),
    [
        ({}, None),
        ({"hid": MOUSE}, None),
        ({"AC": {"type": "Mains", "online": "0"}}, None),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": BATTERY}, True),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": BATTERY}, False),  # a weak charger
        ({"BAT0": BATTERY | {"status": "Full"}}, False),
    ],
)
def test_power(supplies: dict[str, dict[str, str]], on_battery: bool | None) -> None:
    assert parse_power(supplies) is on_battery


def test_a_look_at_a_system(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/stat").write_text(STAT)
    (tmp_path / "proc/self/stat").write_text(own_stat(40, 10, 0))
    for name, content in BATTERY.items():
        folder = tmp_path / "sys/class/power_supply/BAT0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content + "\n")
    told = tmp_path / "loginctl"
    told.write_text("#!/bin/sh\nprintf 'IdleHint=no\\nIdleSinceHint=5\\n'\n")
    told.chmod(0o755)
    seen = Probe(tmp_path, str(told)).look()
    assert seen.cpu is not None and seen.session_idle is False and seen.on_battery is True
    told.write_text("#!/bin/sh\nexit 1\n")
    assert Probe(tmp_path, str(told)).look().session_idle is None
    assert Probe(tmp_path / "nowhere", str(tmp_path / "none")).look() == Seen()


def test_a_look_at_this_system() -> None:
    seen = Probe().look()
    assert seen.cpu is not None and 0 < seen.cpu.own <= seen.cpu.used < seen.cpu.total
