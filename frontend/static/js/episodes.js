/** The episodes tab: says how many episodes arrived since the list was read; the reader decides when to read it again. */

import { announce } from "assay/announce.js";
import { startTable } from "assay/table.js";
import { live } from "assay/live.js";
import { onRunFrame } from "assay/run.js";

/** @type {{id: string, cursor: number, live: boolean}} */
const run = JSON.parse(document.getElementById("run-info")?.textContent ?? "{}");
const fresh = new Set();

function showFresh() {
  const button = /** @type {HTMLElement | null} */ (document.querySelector("[data-fresh]"));
  if (!button) return;
  button.hidden = fresh.size === 0;
  button.textContent = `Show ${fresh.size} new or changed`;
  if (fresh.size) announce(`${fresh.size} episodes are new or changed; press r to show them`);
}

startTable();
document.addEventListener("htmx:afterSwap", (event) => {
  if (/** @type {HTMLElement} */ (event.target).id !== "episode-results") return;
  fresh.clear();
  showFresh();
});
if (run.live) {
  live.subscribe({ topic: "run", run: run.id, cursor: run.cursor, series: [], episodes: true }, {
    frame: (frame) => {
      for (const episode of frame.episodes ?? []) fresh.add(episode.id);
      showFresh();
      onRunFrame(frame);
    },
    poll: () => document.querySelector("[data-fresh]")?.dispatchEvent(new Event("click")),
  });
}
