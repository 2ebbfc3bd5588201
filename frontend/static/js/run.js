/** Any tab of a run: keeps the header true, and shows one of several panels. */

import { announce } from "assay/announce.js";

/** @param {number | null | undefined} seconds @returns {string} in the words of the server's `duration` filter */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, Math.round(seconds));
  for (const [unit, length, next, nextLength] of /** @type {[string, number, string, number][]} */ ([["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]])) {
    if (s >= length) return `${Math.floor(s / length)} ${unit} ${String(Math.floor((s % length) / nextLength)).padStart(2, "0")} ${next}`;
  }
  return `${s} s`;
}

/** @param {string} name @param {(element: any) => void} change */
function patch(name, change) {
  document.querySelectorAll(`[data-live="${name}"]`).forEach(change);
}

let refreshing = 0;
/** Read the header again, at most every two seconds. */
export function refreshHeader() {
  if (refreshing) return;
  refreshing = window.setTimeout(() => {
    refreshing = 0;
    htmx.trigger("#run-header", "assay:refresh");
  }, 2000);
}

/** @type {string | null} */
let shown = null;
/** @param {import("assay/live.js").Frame} frame */
export function onRunFrame(frame) {
  const state = frame.run_state;
  if (state) {
    patch("step", (element) => (element.textContent = Number(state.step).toLocaleString("en").replaceAll(",", "\u2009")));
    patch("progress", (element) => (element.value = state.step));
    patch("eta", (element) => (element.textContent = duration(state.eta_s)));
    const now = [state.state, state.waiting, state.attempt, state.contact_lost, state.reason].join("|");
    if (shown !== null && now !== shown) {
      refreshHeader();
      announce(`The run is ${state.state} at step ${state.step}${state.waiting ? `: ${state.waiting}` : ""}`);
    }
    shown = now;
  }
  if (frame.events?.length) refreshHeader();
}

document.addEventListener("click", (event) => {
  const tab = /** @type {HTMLElement} */ (event.target).closest("[data-panel]");
  if (!tab?.parentElement) return;
  for (const other of tab.parentElement.querySelectorAll("[data-panel]")) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    const panel = document.querySelector(/** @type {HTMLElement} */ (other).dataset.panel ?? "");
    if (panel) panel.toggleAttribute("hidden", !chosen);
  }
});
