"""Who may ask: what is looked at in the head of a request before anybody handles it. Pure.

1. The Host is one of ours (node.http.authority); also where the target is a whole URL.
2. A browser's request comes from a page of ours. `Origin` says where from; where it is absent,
   `Sec-Fetch-Site` does. Following a link to the page is no such thing (a navigation) and allowed. Nobody
   else's page is let in: no response ever carries a CORS header.
3. With API keys, one of them is shown: `Authorization: Bearer KEY`, or Basic with the key as its password,
   which is what a browser can ask its user for.
4. The body is not announced larger than MAX_BODY_BYTES.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from node.http.api_keys import ApiKeys
from node.http.authority import Authority, IpAddress, KnownHosts
from node.http.refusals import Refusal

MAX_BODY_BYTES = 16 << 20
"""Of a request: past every prompt there is; the longest contexts are some 5 MB of text."""

_ONCE = (b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"authorization")
"""They say who asks: who sends two of one says two things."""

_WEB_SCHEMES = ("http", "https")
_URL = re.compile(r"https?://([^/?#]+)(/.*)?")


@dataclass(frozen=True)
class Head:
    """A request's head.

    Attributes:
        target: as sent; headers: names in lower case.
        own: the address that the connection came in at.
    """

    method: str
    target: str
    headers: Sequence[tuple[bytes, bytes]]
    own: IpAddress

    def header(self, name: bytes) -> str | None:
        """A header's value, the first if there are several."""
        for each, value in self.headers:
            if each == name:
                return value.decode("latin-1")
        return None


@dataclass(frozen=True)
class Admitted:
    """A request that may be handled.

    Attributes:
        path: with %-escapes resolved; raw_path, query: as sent.
        key: the name of the API key; "" without keys.
    """

    path: str
    raw_path: bytes
    query: bytes
    key: str


class Guard:
    """The rules of one door."""

    def __init__(self, hosts: KnownHosts, keys: ApiKeys | None) -> None:
        self._hosts = hosts
        self._keys = keys

    def admit(self, head: Head) -> Admitted:
        """What is asked for.

        Raises:
            Refusal: it may not be.
        """
        names = [name for name, _ in head.headers]
        if any(names.count(name) > 1 for name in _ONCE):
            raise Refusal(400, "a header that says who asks came twice", code="bad_header")
        authority, path = self._target(head)
        self._check_origin(head, authority)
        key = self._key(head)
        self._check_size(head)
        raw, _, query = path.partition("?")
        return Admitted(unquote(raw), raw.encode("latin-1"), query.encode("latin-1"), key)

    def _target(self, head: Head) -> tuple[Authority, str]:
        """For whom the request is, and the path."""
        host = Authority.parse(head.header(b"host") or "")
        if host is None:
            raise Refusal(400, "the request names no host: send a Host header", code="bad_host")
        target = head.target
        if target.startswith("/"):
            path = target
        else:
            whole = _URL.fullmatch(target)  # what a client sends that takes this for its proxy
            named = None if whole is None else Authority.parse(whole[1])
            if whole is None or named is None:
                raise Refusal(400, "the request's target must be a path", code="bad_target")
            host, path = named, whole[2] or "/"
        if not self._hosts.knows(host.host, head.own):
            raise Refusal(
                421,
                f"this node does not answer to the name {host.host}: use localhost, or add the name to "
                "http.hosts in its config",
                code="unknown_host",
            )
        return host, path

    def _check_origin(self, head: Head, host: Authority) -> None:
        origin, site = head.header(b"origin"), head.header(b"sec-fetch-site")
        if origin is not None:
            # Only the parts that say who it is; our own page may stand behind a proxy that adds TLS.
            scheme, _, named = origin.partition("://")
            if scheme not in _WEB_SCHEMES or Authority.parse(named) != host:
                raise _foreign(origin)
        elif site in ("cross-site", "same-site"):
            navigates = head.header(b"sec-fetch-mode") == "navigate"
            if not (navigates and head.method in ("GET", "HEAD")):
                raise _foreign(f"a {site} request")

    def _key(self, head: Head) -> str:
        if self._keys is None:
            return ""
        shown = _shown_key(head.header(b"authorization") or "")
        name = None if shown is None else self._keys.name_of(shown)
        if name is None:
            lacking = "no API key was shown" if shown is None else "the API key is none of this node's"
            raise Refusal(
                401,
                f"{lacking}: send Authorization: Bearer KEY, with a key of the file that http.key_file names",
                code="invalid_api_key",
                headers=[("WWW-Authenticate", 'Basic realm="panal: the API key is the password"')],
            )
        return name

    def _check_size(self, head: Head) -> None:
        length = head.header(b"content-length")
        if length is not None and head.header(b"transfer-encoding") is not None:
            # Some proxies go by the one, some by the other, and find the next request in different places.
            raise Refusal(400, "Content-Length and Transfer-Encoding do not go together", code="bad_header")
        if length is not None and int(length) > MAX_BODY_BYTES:  # h11 lets nothing but digits through
            raise too_large()


def too_large() -> Refusal:
    """A body past MAX_BODY_BYTES."""
    return Refusal(
        413, f"the request's body is larger than {MAX_BODY_BYTES} bytes: shorten it", code="body_too_large"
    )


def _foreign(who: str) -> Refusal:
    return Refusal(
        403,
        f"pages of other sites may not use this node: the request came from {who[:100]!r}",
        code="foreign_origin",
    )


def _shown_key(authorization: str) -> str | None:
    kind, _, value = authorization.partition(" ")
    value = value.strip()
    if kind.lower() == "bearer":
        return value or None
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("latin-1").partition(":")[2] or None
        except (binascii.Error, ValueError):
            return None
    return None
