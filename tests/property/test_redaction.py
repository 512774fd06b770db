"""A report for strangers: whatever stands around it, no address, identity, key or home folder is told."""

from __future__ import annotations

import base64
import ipaddress
import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from node.device.redaction import LEFT_OUT, SECRET_KEYS, SHORT_ID_CHARS, Redactor
from routing.identity import Identity

HOME = "/home/anna"
HOST = "annas-laptop"
MODEL_ID = "0a1b" * 16
TOKEN = "correct-horse"

PEERS = [str(Identity.generate().peer_id) for _ in range(4)]

v4 = st.integers(0x01000000, 0xDFFFFFFF).map(lambda n: str(ipaddress.IPv4Address(n)))
v6 = st.builds(
    lambda prefix, host: ipaddress.IPv6Address(prefix << 112 | host),
    st.integers(1, 0xFFFF),
    st.integers(1, (1 << 112) - 1),  # nobody has host 0: 2001:: is a prefix
)
v6_texts = st.one_of(v6.map(str), v6.map(lambda each: each.exploded), v6.map(lambda each: str(each).upper()))
hex_keys = st.binary(min_size=16, max_size=64).map(bytes.hex)
url_keys = st.integers(0, 1 << 32).map(  # as they are drawn: bytes of hypothesis are mostly zeros
    lambda seed: base64.urlsafe_b64encode(random.Random(seed).randbytes(32)).decode().rstrip("=")
)
secrets = st.one_of(
    v4.filter(lambda text: not ipaddress.ip_address(text).is_loopback),
    v6_texts,
    st.sampled_from(PEERS),
    st.sampled_from(PEERS).map(lambda peer: peer[-SHORT_ID_CHARS:]),
    hex_keys,
    url_keys,
    st.just(TOKEN),
    st.just(HOME),
    st.just(HOST),
    st.just("anna@example.org"),
    st.just("aa:bb:cc:dd:ee:0f"),
    st.just("panal-invite:AbC123-_x"),
)
around = st.text(st.sampled_from(" \n\t\"'()[]{},;/=<>|"), min_size=1, max_size=3)
words = st.one_of(
    st.text(st.characters(codec="utf-8", categories=["L", "P", "S"]), max_size=12),
    st.sampled_from(["/ip4/", "/ip6/", "/p2p/", "http://", "udp", "12:04:31", "seq 7", "panal 0.2.0"]),
)


def redactor() -> Redactor:
    made = Redactor(home=HOME, host=HOST, secrets=[TOKEN], kept=[MODEL_ID])
    made.learn({"peers": PEERS})
    return made


@given(parts=st.lists(st.tuples(words, around, secrets, around), max_size=6))
def test_no_secret_is_told(parts: list[tuple[str, str, str, str]]) -> None:
    text = "".join("".join(part) for part in parts)
    told = redactor().text(text)
    for _, _, secret, _ in parts:
        assert secret not in told, (secret, told)
    again = redactor()
    assert again.text(told) == again.text(again.text(told)), "what is redacted stays as it is"


@given(address=v4, glued=st.text(st.sampled_from("abxyz_-:"), max_size=4))
def test_an_ipv4_address_that_words_stand_close_to(address: str, glued: str) -> None:
    if not ipaddress.ip_address(address).is_loopback:
        assert address not in redactor().text(f"{glued}{address}{glued} ::ffff:{address} [{address}]:4190")


@given(one=v4, other=v4)
def test_the_same_name_for_the_same_and_no_other(one: str, other: str) -> None:
    made = redactor()
    first, second, third = (made.text(f"at {each}") for each in (one, other, one))
    assert first == third and (first == second) == (one == other)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), secrets, words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)


@given(value=json_values, secret=secrets, key=st.sampled_from(sorted(SECRET_KEYS)))
def test_values_of_any_shape(value: Any, secret: str, key: str) -> None:
    told = redactor().value({"a": [value, {"b": f" {secret} "}], key: "opensesame", f" {secret} ": 1})
    dumped = json.dumps(told, ensure_ascii=False)
    assert secret not in dumped and "opensesame" not in dumped
    assert told[key] == LEFT_OUT
    assert len(told["a"]) == 2, "the shape stays"


@given(text=st.text(st.characters(codec="utf-8", categories=["L", "Z"]), max_size=60))
def test_plain_words_stay(text: str) -> None:
    if HOST not in text:
        assert redactor().text(text) == text


def test_what_is_everybodys_stays() -> None:
    text = (
        f"panal 0.2.0 on 127.0.0.1:4190, [::1]:4190 and 0.0.0.0, model {MODEL_ID}, 12:04:31.482, "
        "2026-11-30T12:04:31Z, Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL.gguf, std::vector, http://localhost:1"
    )
    assert redactor().text(text) == text


def test_a_report_can_be_followed() -> None:
    made = redactor()
    text = made.text(
        f"connected to {PEERS[0]} at /ip4/198.41.0.4/udp/4190 via {PEERS[1]}; "
        f'lost {PEERS[0]}; "..{PEERS[1][-8:]}"'
        f" store {HOME}/models, log /home/bob/x, host {HOST}, /dns4/Relay.example.org/tcp/443, 192.168.1.7"
    )
    assert text == (
        'connected to peer-1 at /ip4/ip-1/udp/4190 via peer-2; lost peer-1; "..peer-2"'
        " store ~/models, log /home/user-1/x, host this-host, /dns4/name-1/tcp/443, lan-ip-1"
    )


def test_keys_in_a_config() -> None:
    text = redactor().text(
        'name = "kitchen"\nkey = "abcd"\n# key_file = "http.key"\nmember = "m.cert"\n'
        "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nAuthorization: Bearer abcdef123\n"
    )
    assert text == (
        f'name = "kitchen"\nkey = "{LEFT_OUT}"\n# key_file = "{LEFT_OUT}"\nmember = "{LEFT_OUT}"\n'
        f"key-1\nAuthorization: Bearer {LEFT_OUT}\n"
    )
