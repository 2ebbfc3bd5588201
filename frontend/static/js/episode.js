/** One episode: its tabs, and a reload of what changed while it runs. The token view is fetched when it is first opened. */

import { live } from "assay/live.js";
import { bind } from "assay/keys.js";
import { keepTokens } from "assay/sending.js";
import { ask } from "assay/session.js";
import { openTokens } from "assay/tokens.js";
import { showPin, startTurns } from "assay/turns.js";

const page = /** @type {HTMLElement} */ (document.querySelector("[data-episode]"));
const identifier = page.dataset.episode ?? "";
const TABS = ["transcript", "tokens", "grade", "raw"];
let tokensOpen = false;

function showTab() {
  const wanted = location.hash.slice(1);
  const chosen = TABS.includes(wanted) ? wanted : "transcript";
  for (const pane of page.querySelectorAll("[data-pane]")) /** @type {HTMLElement} */ (pane).hidden = pane.getAttribute("data-pane") !== chosen;
  for (const tab of page.querySelectorAll("[data-tab]")) {
    const current = tab.getAttribute("data-tab") === chosen;
    tab.setAttribute("aria-selected", String(current));
    tab.toggleAttribute("aria-current", current);
  }
  if (chosen === "tokens" && !tokensOpen) {
    tokensOpen = true;
    openTokens(identifier);
  }
}

/** Read the turns again; the rest of the page follows when the reader comes back to it. */
async function reread() {
  const answer = await ask(location.href);
  if (!answer.ok) return;
  const text = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const selector of ["#turns", ".strip", ".episode-head", ".episode-side"]) {
    const now = document.querySelector(selector), next = text.querySelector(selector);
    if (!now || !next) continue;
    keepTokens(now, next);
    if (now.innerHTML === next.innerHTML) continue;
    now.replaceWith(next);
    htmx.process(next);
  }
  showPin(identifier);
  if (following) toEnd();
}

let following = false;
const toEnd = () => document.querySelector("#turns > .turn:last-child")?.scrollIntoView({ block: "end" });

/** Following sticks to the newest turn until the reader scrolls up. */
function follow() {
  following = !following;
  if (following) toEnd();
}

window.addEventListener("hashchange", () => {
  showTab();
  if (location.hash === "#tokens") /** @type {HTMLElement | null} */ (page.querySelector("[data-tokens]"))?.focus({ preventScroll: true });
});
window.addEventListener("wheel", (event) => (following &&= event.deltaY >= 0), { passive: true });
showTab();
startTurns(identifier);
if (page.dataset.live) bind("f", "Follow the newest turn", "Episode", follow);
if (page.dataset.live) live.subscribe({ topic: "episode", episode: identifier }, { changed: reread, poll: reread });
