// The node's events: a snapshot first, then what changed. Goes on by itself when the node comes back.

const SILENCE_MS = 25000; // the node says something every ten seconds while it lives
const AGAIN_MS = 3000; // EventSource gives up when it is refused (too many pages, a node that is starting)
const SECTIONS = ["node", "models", "answers", "gateway", "warnings", "market"];

export class Feed {
  // onChange(sections, ids of the peers that changed or null for all); onState("live" or "lost")
  constructor(onChange, onState) {
    this.status = null;
    this.onChange = onChange;
    this.onState = onState;
    this.peers = new Map();
    this.heard = 0;
    setInterval(() => this.watch(), SILENCE_MS / 5);
    this.open();
  }

  open() {
    this.source?.close();
    clearTimeout(this.again);
    this.heard = Date.now();
    const source = (this.source = new EventSource("/api/events"));
    const on = (name, take) => source.addEventListener(name, (event) => {
      this.heard = Date.now();
      take(JSON.parse(event.data));
    });
    on("snapshot", (status) => {
      this.status = status;
      this.peers = new Map(status.peers.map((peer) => [peer.id, peer]));
      this.onState("live");
      this.onChange(["peers", ...SECTIONS], null);
    });
    for (const section of SECTIONS) {
      on(section, (value) => { this.status[section] = value; this.onChange([section], null); });
    }
    on("peers", ({ changed, gone, left_out }) => {
      for (const peer of changed) this.peers.set(peer.id, peer);
      for (const id of gone) this.peers.delete(id);
      this.status.peers_left_out = left_out;
      this.onChange(["peers"], changed.map((peer) => peer.id));
    });
    source.addEventListener("open", () => { this.heard = Date.now(); });
    source.addEventListener("error", () => {
      if (this.source !== source) return;
      this.onState("lost");
      if (source.readyState === EventSource.CLOSED) this.again = setTimeout(() => this.open(), AGAIN_MS);
    });
  }

  watch() {
    if (Date.now() - this.heard < SILENCE_MS) return;
    this.onState("lost");
    this.open();
  }
}
