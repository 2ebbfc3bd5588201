/** A transcript under the keyboard: n and p walk its turns, e unfolds them all, d pins an episode and compares another one with it. */

import { bind } from "assay/keys.js";

const PINNED = "assay:pinned-episode";

/** @param {number} by */
function walk(by) {
  const turns = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("#turns > .turn:not(.more)")]);
  const here = turns.findIndex((turn) => turn.id === document.activeElement?.id);
  const next = turns[Math.min(turns.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
  if (!next) return;
  next.tabIndex = -1;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "start" });
  history.replaceState(history.state, "", `#${next.id}`);
}

function unfold() {
  const folded = /** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll("#turns details"));
  const open = [...folded].some((details) => !details.open);
  for (const details of folded) details.open = open;
}

/** @param {string} episode */
function compareOrPin(episode) {
  const pinned = sessionStorage.getItem(PINNED);
  if (pinned && pinned !== episode) location.href = `/episodes/${pinned}/compare/${episode}`;
  else pin(episode);
}

/** Pin the episode, or let go of it. @param {string} episode */
function pin(episode) {
  if (sessionStorage.getItem(PINNED) === episode) sessionStorage.removeItem(PINNED);
  else sessionStorage.setItem(PINNED, episode);
  showPin(episode);
}

/** Say whether this episode is pinned, and offer the comparison when another one is. @param {string} episode */
export function showPin(episode) {
  const pinned = sessionStorage.getItem(PINNED);
  document.querySelector("[data-pin]")?.setAttribute("aria-pressed", String(pinned === episode));
  const link = /** @type {HTMLAnchorElement | null} */ (document.querySelector("[data-pinned-diff]"));
  if (!link) return;
  link.hidden = !pinned || pinned === episode;
  link.href = `/episodes/${pinned}/compare/${episode}`;
}

/** An address that names a turn which comes after the first ones leads there once it has come. */
function awaitNamedTurn() {
  const wanted = location.hash;
  if (!wanted.startsWith("#turn-") || document.getElementById(wanted.slice(1))) return;
  document.addEventListener("htmx:afterSettle", function arrived() {
    if (location.hash !== wanted) return document.removeEventListener("htmx:afterSettle", arrived);
    if (!document.getElementById(wanted.slice(1))) return;
    document.removeEventListener("htmx:afterSettle", arrived);
    location.replace(wanted);
  });
}

/** @param {string} episode */
export function startTurns(episode) {
  awaitNamedTurn();
  bind("n", "Next turn", "Episode", () => walk(1));
  bind("p", "Previous turn", "Episode", () => walk(-1));
  bind("e", "Unfold every turn, or fold them", "Episode", unfold);
  bind("d", "Pin this episode, or compare with the pinned one", "Episode", () => compareOrPin(episode));
  document.addEventListener("click", (event) => {
    if (/** @type {HTMLElement} */ (event.target).closest("[data-pin]")) pin(episode);
  });
  showPin(episode);
}
