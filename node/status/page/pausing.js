// The pause button: what the owner of the device may do to have it back.

import { byId, write } from "./elements.js";

const button = byId("pause"), note = byId("pause-note");
let failure = ""; // of the last try; gone with the next

export function showPause(node) {
  const pause = node.pause, resumes = node.state === "paused" && pause?.by_hand;
  // Schedule and idle rule are the config's: a button that did nothing would be a lie.
  byId("pausing").hidden = node.state === "nothing" || (node.state === "paused" && !pause?.by_hand);
  byId("pause-length").hidden = resumes;
  write(button, resumes ? "Resume" : "Pause");
  const ends = resumes ? "" : " It serves again by itself; the config says when.";
  write(note, failure || (pause ? `Paused ${pause.text}: no peer is given anything. What this node asks of others goes on.${ends}` : ""));
}

function post(path, body) {
  return fetch(path, { method: "POST", credentials: "same-origin", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

// changed(answer): the node's word on its state now
export function listen(node, changed) {
  button.addEventListener("click", async () => {
    const resumes = node().state === "paused", length = byId("pause-seconds").value;
    const ask = () => (resumes ? post("/api/resume", {}) : post("/api/pause", { seconds: length ? Number(length) : null }));
    button.setAttribute("aria-disabled", "true"); // and not disabled: that would take the focus away
    failure = "";
    try {
      let answer = await ask();
      if (answer.status === 403) { // a node that began anew may have another token: the page's own address sets it
        await fetch("/", { credentials: "same-origin", cache: "no-store" });
        answer = await ask();
      }
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error?.message ?? `the node said ${answer.status}`);
      changed(told);
    } catch (error) {
      failure = `That did not work: ${error.message}`;
    } finally {
      button.removeAttribute("aria-disabled");
      showPause(node());
    }
  });
}
