/** The launch page: ask the server to check while the form is filled in, and show each problem at its field. */

import { announce } from "assay/announce.js";

const form = /** @type {HTMLFormElement} */ (document.getElementById("launch-form"));
const fields = /** @type {HTMLElement} */ (document.getElementById("launch-fields"));
const text = /** @type {HTMLElement} */ (document.getElementById("launch-text"));
const QUIET_MS = 350;
const OPEN_ON_A_PHONE = 2;
let timer = 0;
/** Names of the inputs that somebody changed or left: only they are found fault with, until the whole form was sent. @type {Set<string>} */
const touched = new Set();

function askForCheck() {
  clearTimeout(timer);
  timer = window.setTimeout(() => document.body.dispatchEvent(new CustomEvent("assay:check")), QUIET_MS);
}

let verdict = "";
function announceVerdict() {
  const now = document.getElementById("rail-verdict")?.textContent?.trim() ?? "";
  if (now !== verdict) announce(now);
  verdict = now;
}

/** @param {{ pointer: string, missing: boolean }} found whether to say it at its field yet */
function isDue({ pointer, missing }) {
  return "refused" in form.dataset || touched.has(pointer) || (touched.size > 0 && !missing);
}

/** Writes the server's findings beside the fields they name, or beside the nearest field above. */
function showProblems() {
  const found = JSON.parse(document.getElementById("launch-problems")?.textContent ?? "[]");
  for (const place of fields.querySelectorAll("[data-problem]")) setProblem(/** @type {HTMLElement} */ (place), "");
  document.getElementById("launch-rail")?.classList.toggle("untouched", !touched.size && !("refused" in form.dataset));
  for (const problem of found.filter(isDue)) {
    const place = placeOf(problem.pointer);
    if (place) setProblem(place, problem.message);
  }
}

/** On a phone only the first sections and those with a problem stand open: the form is long. */
function foldSections() {
  if (!matchMedia("(max-width: 900px)").matches) return;
  const sections = /** @type {HTMLDetailsElement[]} */ ([...fields.querySelectorAll("[data-section]")]);
  sections.slice(OPEN_ON_A_PHONE).forEach((section) => (section.open = Boolean(section.querySelector(".problem:not([hidden])"))));
}

/** @param {string} pointer @returns {HTMLElement | null} */
function placeOf(pointer) {
  for (let path = pointer; path; path = path.slice(0, path.lastIndexOf("/"))) {
    const place = fields.querySelector(`[data-problem="${CSS.escape(path)}"]`);
    if (place) return /** @type {HTMLElement} */ (place);
  }
  return null;
}

/** @param {HTMLElement} place @param {string} message */
function setProblem(place, message) {
  place.textContent = message;
  place.hidden = !message;
  if (message) place.closest("details")?.setAttribute("open", "");
  const input = place.parentElement?.matches(".input") ? place.parentElement.querySelector("input, select, textarea") : null;
  if (message) input?.setAttribute("aria-invalid", "true");
  else input?.removeAttribute("aria-invalid");
}

/** @param {HTMLElement} button */
function openDoor(button) {
  const isForm = button.dataset.door === "form";
  fields.hidden = !isForm;
  text.hidden = isForm;
  for (const other of form.querySelectorAll("[data-door]")) {
    other.setAttribute("aria-selected", String(other === button));
  }
}

/** @param {MouseEvent} event */
function onClick(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const door = /** @type {HTMLElement | null} */ (target.closest("[data-door]"));
  if (door) openDoor(door);
  const link = /** @type {HTMLElement | null} */ (target.closest("[data-goto]"));
  if (!link) return;
  event.preventDefault();
  const place = placeOf(link.dataset.goto ?? "");
  place?.closest("details")?.setAttribute("open", "");
  place?.scrollIntoView({ block: "center" });
  /** @type {HTMLElement | null | undefined} */ (place?.parentElement?.querySelector("input, select, textarea"))?.focus();
}

form.addEventListener("input", (event) => {
  const box = /** @type {HTMLInputElement} */ (event.target);
  if ("advanced" in box.dataset) form.classList.toggle("advanced", box.checked);
  else {
    touched.add(box.name);
    askForCheck();
  }
});
fields.addEventListener("focusout", (event) => {
  touched.add(/** @type {HTMLInputElement} */ (event.target).name);
  showProblems();
});
form.addEventListener("submit", () => {
  const button = /** @type {HTMLButtonElement} */ (document.querySelector("[data-launch]"));
  button.disabled = true;
});
foldSections();
window.addEventListener("pageshow", () => (/** @type {HTMLButtonElement} */ (document.querySelector("[data-launch]")).disabled = false));
document.addEventListener("click", onClick);
document.addEventListener("htmx:afterSwap", (event) => {
  if (/** @type {HTMLElement} */ (event.target).id === "launch-rail") {
    showProblems();
    announceVerdict();
  } else if (fields.contains(/** @type {HTMLElement} */ (event.target))) askForCheck();
});
