"""What a report for strangers must not tell: addresses, identities, keys, whose device it is. Pure.

Everything is replaced by a name that is the same wherever it stands (`peer-2`, `ip-3`), so that a report can
still be followed. In doubt more is replaced than need be: what looks like a key is one, but for ids of models
that were said to be none.

1. Known secrets (tokens, API keys) wherever they stand; then what looks like one: PEM blocks, invitations,
   bearer tokens, long runs of hex, base58 and base64.
2. Peer ids in full, and the last digits of those that were seen in full.
3. IPv4, IPv6 and MAC addresses, and names of hosts in multiaddrs and URLs. Loopback and "any address" stay:
   they are everybody's.
4. The home folder and the folders of others, the host's name, the node's own and those under which it is
   reached, and mail addresses.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Any

SHORT_ID_CHARS = 8
"""How pages and tables shorten a peer id: to its end (node.status)."""

MAX_IPV6_CHARS = 48
"""Of a run of hex digits and colons that is looked at; an address with an IPv4 end has 45."""

DRAWN_CHARS = 16
"""Letters and digits without a break, of a key; names of models have parts of 10."""

TOKEN_CHARS, TOKEN_PARTS = 40, 8
"""A longer run in no more parts than that is a key as well: base64 for URLs has a dash here and there, a name
of that length has them everywhere."""

SECRET_KEYS = frozenset(
    {"key", "token", "member", "certificate_key", "key_file", "password", "secret", "authorization", "cookie"}
)
"""Keys of configs and JSON whose values are left out, whatever they are."""

MIN_NAME_CHARS = 3
"""Of a name that is looked for as a word: shorter ones are in every text."""

LEFT_OUT = "[left out]"

_PEM = re.compile(r"-----BEGIN [^-\n]{1,60}-----.*?(-----END [^-\n]{1,60}-----|\Z)", re.DOTALL)
_INVITE = re.compile(r"panal-invite:[^\s\"']+")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")
_PEER = re.compile(
    r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}|16Uiu2HA[1-9A-HJ-NP-Za-km-z]{45}|Qm[1-9A-HJ-NP-Za-km-z]{44}"
    r"|bafz[a-z2-7]{48,}"
)
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:])")
_COLONS = re.compile(r"[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*(?:%[A-Za-z0-9_.-]+)?")
_HOST = re.compile(
    r"(?P<before>/dns(?:4|6|addr)?/|https?://|wss?://)(?P<host>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)"
)
_MAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_HOME = re.compile(r"(?P<before>/home/|/Users/)(?P<who>[^/\s\"':,;]+)")
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{32,}(?![0-9A-Za-z])")
_RUN = re.compile(r"[A-Za-z0-9_-]{24,}|[A-Za-z0-9+/]{40,}={1,2}")
_ASSIGNED = re.compile(rf"(?m)^(?P<before>\s*(?:#\s*)?(?:{'|'.join(sorted(SECRET_KEYS))})\s*=\s*)\S.*$")

_KEPT_HOSTS = frozenset({"localhost"})


class Redactor:
    """Replaces, with one memory for a whole report.

    Args:
        home: the user's home folder.
        host: the machine's name.
        names: of the node, and under which it is reached.
        secrets: texts that must not be told wherever they stand.
        kept: long hex texts that are no secret: ids of models.
    """

    def __init__(
        self,
        *,
        home: str = "",
        host: str = "",
        names: Collection[str] = (),
        secrets: Collection[str] = (),
        kept: Collection[str] = (),
    ) -> None:
        self._home = home.rstrip("/")
        self._host = host if len(host) >= MIN_NAME_CHARS and host not in _KEPT_HOSTS else ""
        own = {each for each in names if len(each) >= MIN_NAME_CHARS} - _KEPT_HOSTS - {self._host}
        self._own = sorted(own, key=lambda each: (-len(each), each))
        self._secrets = sorted((each for each in secrets if each), key=len, reverse=True)
        self._kept = frozenset(kept)
        self._names: dict[str, dict[str, str]] = {}

    def learn(self, value: object) -> None:
        """Take note of the peers that a value names in full, before any of it is redacted: what is redacted
        first may name them by their last digits alone."""
        for found in _PEER.finditer(_flat(value)):
            self._name("peer", found[0])

    def text(self, text: str) -> str:
        """A text without what must not be told."""
        text = self._but_own_names(text)
        for name in self._own:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", self._name("name", name.lower()), text)
        return text

    def _but_own_names(self, text: str) -> str:
        """The same with the node's own names: they may be words that keys of JSON are as well."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, self._name("key", secret))
        text = _PEM.sub(lambda found: self._name("key", found[0]), text)
        text = _INVITE.sub(lambda found: self._name("invitation", found[0]), text)
        text = _ASSIGNED.sub(lambda found: f'{found["before"]}"{LEFT_OUT}"', text)
        text = _BEARER.sub(lambda found: f"{found[1]} {LEFT_OUT}", text)
        text = _PEER.sub(lambda found: self._name("peer", found[0]), text)
        for peer_id, name in self._names.get("peer", {}).items():
            text = text.replace(peer_id[-SHORT_ID_CHARS:], name)
        text = _MAIL.sub(lambda found: self._name("mail", found[0]), text)
        text = self._without_home(text)
        text = _HOST.sub(self._host_name, text)
        text = _MAC.sub(lambda found: self._name("mac", found[0].lower().replace("-", ":")), text)
        text = _IPV4.sub(lambda found: self._address(found[0]), text)  # first: IPv6 may end in one
        text = _COLONS.sub(lambda found: self._ipv6(found[0]), text)
        text = _HEX.sub(lambda found: self._hex(found[0]), text)
        text = _RUN.sub(lambda found: self._run(found[0]), text)
        if self._host:
            text = re.sub(rf"(?<!\w){re.escape(self._host)}(?!\w)", "this-host", text)
        return text

    def value(self, value: Any) -> Any:
        """The same for whatever JSON can be made of."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self._but_own_names(str(key)): LEFT_OUT if key in SECRET_KEYS and each else self.value(each)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return value

    # --- inside ---

    def _name(self, kind: str, what: str) -> str:
        names = self._names.setdefault(kind, {})
        return names.setdefault(what, f"{kind}-{len(names) + 1}")

    def _without_home(self, text: str) -> str:
        if len(self._home) > 1:
            text = re.sub(rf"{re.escape(self._home)}(?=[/\s\"':,;)\]]|$)", "~", text)
        return _HOME.sub(lambda found: found["before"] + self._name("user", found["who"]), text)

    def _host_name(self, found: re.Match[str]) -> str:
        host = found["host"]
        if host in _KEPT_HOSTS or _IPV4.fullmatch(host):
            return found[0]
        return found["before"] + self._name("name", host.lower())

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return self._name("ip", text)  # 999.1.2.3, 010.0.0.1: not one, but it looks like it
        if address.is_loopback or address.is_unspecified:
            return text
        return self._name("lan-ip" if address.is_private else "ip", str(address))

    def _ipv6(self, text: str) -> str:
        """A run of hex digits and colons with the addresses in it replaced, and their zones."""
        run, _, zone = text.partition("%")
        parts: list[str] = []
        start = 0
        while start < len(run):
            lengths = range(min(len(run) - start, MAX_IPV6_CHARS), 2, -1)
            length = next((each for each in lengths if _is_ipv6(run[start : start + each])), 0)
            parts.append(self._address(run[start : start + length]) if length else run[start])
            start += max(1, length)
        return "".join(parts) + (f"%{self._name('zone', zone)}" if zone else "")

    def _hex(self, text: str) -> str:
        return text if text.lower() in self._kept else self._name("key", text)

    def _run(self, text: str) -> str:
        if text.lower() in self._kept:
            return text
        parts = re.split(r"[-_+/=]", text)
        is_long = len(text) >= TOKEN_CHARS and len(parts) <= TOKEN_PARTS and _is_mixed(text)
        drawn = is_long or any(len(part) >= DRAWN_CHARS and _is_mixed(part) for part in parts)
        return self._name("key", text) if drawn else text


def _is_mixed(part: str) -> bool:
    """Whether it has digits and letters of both cases."""
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(is_kind(char) for char in part) for is_kind in kinds)


def _is_ipv6(text: str) -> bool:
    if text.count(":") < 2:
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return sum(bool(group) for group in text.split(":")) >= 2 or text in ("::1", "::")


def _flat(value: object) -> str:
    """All texts of a value."""
    if isinstance(value, Mapping):
        return " ".join(f"{_flat(key)} {_flat(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_flat, value))
    return value if isinstance(value, str) else ""
