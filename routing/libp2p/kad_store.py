"""What a DHT server keeps for others, with every number bounded. Pure: `now` is unix time in seconds.

1. A record is kept only if it is a valid advert under its own key, and until that advert ends.
2. A provider is always the peer that says so, proven by its connection; it is kept PROVIDER_SECONDS.
3. When a table is full, the origin (IP address or subnet) that holds most of it gives way, the oldest
   first: who floods pushes out only itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from routing.identity import PeerId
from routing.libp2p.advert_records import check_record, record_ends
from routing.libp2p.kad_wire import KadPeer

# Records in all: 9,000 bytes each at most, so 18 MB.
MAX_RECORDS = 2048
# Records that came from one origin: a household's nodes, or a relay's clients that store through it.
MAX_RECORDS_PER_ORIGIN = 256
# Entries "this peer, under this key" in all.
MAX_PROVIDERS = 16_384
# The same from one origin.
MAX_PROVIDERS_PER_ORIGIN = 1024
# Keys one peer is listed under: its swarm's and those of the models it serves.
MAX_KEYS_PER_PROVIDER = 32
# A provider says so again every few minutes (directory.py); one that is gone misleads no longer than this.
PROVIDER_SECONDS = 1800.0


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedTable(Generic[Key, Value]):
    """Rows in order of arrival, bounded in all and for each origin; each row has an end."""

    def __init__(self, limit: int, limit_per_origin: int) -> None:
        self._limit, self._limit_per_origin = limit, limit_per_origin
        self._rows: dict[Key, tuple[Value, str, float]] = {}
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: Key, now: float) -> Value | None:
        """The row's value if it has not ended."""
        row = self._rows.get(key)
        return row[0] if row is not None and now < row[2] else None

    def put(self, key: Key, value: Value, origin: str, ends: float) -> list[Key]:
        """Enter or replace a row, as the newest; the keys that had to give way are returned."""
        self.remove(key)
        gone = []
        while self._held[origin] >= self._limit_per_origin:
            gone.append(self._drop_oldest(origin))
        while len(self._rows) >= self._limit:
            gone.append(self._drop_oldest(self._held.most_common(1)[0][0]))
        self._rows[key] = (value, origin, ends)
        self._held[origin] += 1
        return gone

    def remove(self, key: Key) -> None:
        """Drop a row if it is there."""
        row = self._rows.pop(key, None)
        if row is not None:
            self._held[row[1]] -= 1
            if not self._held[row[1]]:
                del self._held[row[1]]

    def expire(self, now: float) -> list[Key]:
        """Drop what has ended; its keys."""
        over = [key for key, row in self._rows.items() if now >= row[2]]
        for key in over:
            self.remove(key)
        return over

    def _drop_oldest(self, origin: str) -> Key:
        key = next(key for key, row in self._rows.items() if row[1] == origin)
        self.remove(key)
        return key


@dataclass(frozen=True)
class _Record:
    value: bytes
    seq: int


class KadStore:
    """Records and providers of one server."""

    def __init__(self) -> None:
        self._records: BoundedTable[bytes, _Record] = BoundedTable(MAX_RECORDS, MAX_RECORDS_PER_ORIGIN)
        self._providers: BoundedTable[tuple[bytes, PeerId], KadPeer] = BoundedTable(
            MAX_PROVIDERS, MAX_PROVIDERS_PER_ORIGIN
        )
        self._by_key: dict[bytes, dict[PeerId, None]] = {}
        self._keys_of: dict[PeerId, dict[bytes, None]] = {}

    @property
    def record_count(self) -> int:
        """Records held, ended ones until the next `expire` included."""
        return len(self._records)

    @property
    def provider_count(self) -> int:
        """Pairs of key and provider held."""
        return len(self._providers)

    def put_record(self, key: bytes, value: bytes, *, origin: str, now: float) -> bool:
        """Keep a record; False if a newer one is held already.

        Raises:
            PeerError: it is no valid advert under this key.
        """
        record = check_record(key, value, now=now)
        held = self._records.get(key, now)
        if held is not None and held.seq > record.advert.seq:
            return False
        self._records.put(key, _Record(value, record.advert.seq), origin, record_ends(record, now))
        return True

    def record(self, key: bytes, *, now: float) -> bytes | None:
        """The record under a key."""
        held = self._records.get(key, now)
        return None if held is None else held.value

    def add_provider(self, key: bytes, provider: KadPeer, *, origin: str, now: float) -> None:
        """Keep that a peer lists itself under a key; its oldest listing gives way when it has too many."""
        peer_id = provider.peer_id
        keys = self._keys_of.setdefault(peer_id, {})
        if key not in keys and len(keys) >= MAX_KEYS_PER_PROVIDER:
            self._forget(next(iter(keys)), peer_id)
        for gone in self._providers.put((key, peer_id), provider, origin, now + PROVIDER_SECONDS):
            self._unlist(*gone)
        self._by_key.setdefault(key, {}).pop(peer_id, None)
        self._by_key[key][peer_id] = None  # newest last
        self._keys_of.setdefault(peer_id, {})[key] = None

    def providers(self, key: bytes, count: int, *, now: float) -> list[KadPeer]:
        """The newest providers under a key."""
        found: list[KadPeer] = []
        for peer_id in reversed(self._by_key.get(key, {})):
            provider = self._providers.get((key, peer_id), now)
            if provider is not None:
                found.append(provider)
            if len(found) == count:
                break
        return found

    def expire(self, now: float) -> None:
        """Drop what has ended."""
        self._records.expire(now)
        for gone in self._providers.expire(now):
            self._unlist(*gone)

    def _forget(self, key: bytes, peer_id: PeerId) -> None:
        self._providers.remove((key, peer_id))
        self._unlist(key, peer_id)

    def _unlist(self, key: bytes, peer_id: PeerId) -> None:
        for table, outer, inner in ((self._by_key, key, peer_id), (self._keys_of, peer_id, key)):
            _discard(table, outer, inner)


def _discard(table: dict[Any, dict[Any, None]], outer: object, inner: object) -> None:
    held = table.get(outer)
    if held is not None:
        held.pop(inner, None)
        if not held:
            del table[outer]
