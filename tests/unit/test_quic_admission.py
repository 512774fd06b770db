"""Who may begin a handshake, and how fast."""

from __future__ import annotations

from routing.quic.admission import Admission
from routing.quic.limits import Limits

LIMITS = Limits()


def begun(admission: Admission, host: str, now: float, tries: int = 200) -> int:
    """How many of so many first datagrams in a row are looked at; each is forgotten at once."""
    return sum(admission.admits(host, now) for _ in range(tries))


def test_one_address_begins_a_burst_and_then_so_many_a_second() -> None:
    admission = Admission(LIMITS)
    assert begun(admission, "192.0.2.1", 0.0) == LIMITS.handshake_burst_per_ip
    assert begun(admission, "192.0.2.1", 1.0) == LIMITS.handshakes_per_second_per_ip
    assert begun(admission, "192.0.2.2", 1.0) == LIMITS.handshake_burst_per_ip, "others are not held up"


def test_a_network_of_ipv6_is_one_address() -> None:
    admission = Admission(LIMITS)
    looked_at = sum(admission.admits(f"2001:db8::{number:x}", 0.0) for number in range(200))
    assert looked_at == LIMITS.handshake_burst_per_ip


def test_all_together_are_bounded_and_the_refused_cost_nothing() -> None:
    admission = Admission(LIMITS)
    looked_at = sum(admission.admits(f"198.51.{number // 200}.{number % 200}", 0.0) for number in range(4000))
    assert looked_at == LIMITS.handshake_burst
    assert begun(admission, "192.0.2.1", 1.0) == LIMITS.handshakes_per_second
    assert begun(admission, "192.0.2.2", 2.0) == LIMITS.handshakes_per_second
