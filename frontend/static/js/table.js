/** Rows of a table under the keyboard: j k Enter x, and a selection that lives in the URL. */

import { bind } from "assay/keys.js";

export const SELECTED = "selected";

/** @returns {HTMLTableRowElement[]} */
const rows = () => [...document.querySelectorAll("table[data-rows] > tbody > tr")].map((row) => /** @type {HTMLTableRowElement} */ (row));

/** @returns {HTMLTableRowElement | undefined} */
const currentRow = () => rows().find((row) => row.classList.contains("current"));

/** @param {number} by */
function move(by) {
  const all = rows();
  const here = all.findIndex((row) => row.classList.contains("current"));
  const next = all[Math.min(all.length - 1, Math.max(0, here + by))];
  if (here >= 0) all[here].classList.remove("current");
  next?.classList.add("current");
  next?.scrollIntoView({ block: "nearest" });
  /** @type {HTMLElement | null | undefined} */ (next?.querySelector("a[data-open]"))?.focus({ preventScroll: true });
}

/** @returns {string[]} identifiers of the picked rows, also of those on other pages */
export function selection() {
  return (new URL(location.href).searchParams.get(SELECTED) ?? "").split(",").filter(Boolean);
}

/** @param {string[]} identifiers */
export function select(identifiers) {
  const url = new URL(location.href);
  if (identifiers.length) url.searchParams.set(SELECTED, identifiers.join(","));
  else url.searchParams.delete(SELECTED);
  history.replaceState(history.state, "", url.toString().replaceAll("%2C", ","));
  const kept = /** @type {HTMLInputElement | null} */ (document.querySelector(`form input[type=hidden][name=${SELECTED}]`));
  if (kept) kept.value = identifiers.join(",");
  showSelection();
}

/** Make boxes, row colours and the bulk bar agree with the URL. */
export function showSelection() {
  const chosen = new Set(selection());
  for (const row of rows()) {
    const box = /** @type {HTMLInputElement | null} */ (row.querySelector("input[data-pick]"));
    if (!box) continue;
    box.checked = chosen.has(box.value);
    row.classList.toggle("selected", box.checked);
  }
  document.dispatchEvent(new CustomEvent("assay:selection", { detail: [...chosen] }));
}

/** @param {HTMLInputElement} box */
function onPick(box) {
  const chosen = new Set(selection());
  if (box.checked) chosen.add(box.value);
  else chosen.delete(box.value);
  select([...chosen]);
}

/** @param {boolean} checked */
function pickAll(checked) {
  const chosen = new Set(selection());
  for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("input[data-pick]"))) {
    if (checked) chosen.add(box.value);
    else chosen.delete(box.value);
  }
  select([...chosen]);
}

export function startTable() {
  bind("j", "Next row", "Table", () => move(1));
  bind("k", "Previous row", "Table", () => move(-1));
  bind("Enter", "Open row", "Table", () => /** @type {HTMLElement | null | undefined} */ (currentRow()?.querySelector("a[data-open]"))?.click());
  bind("x", "Pick row", "Table", () => /** @type {HTMLElement | null | undefined} */ (currentRow()?.querySelector("input[data-pick]"))?.click());
  document.addEventListener("change", (event) => {
    const box = /** @type {HTMLInputElement} */ (event.target);
    if (box.matches("input[data-pick]")) onPick(box);
    if (box.matches("input[data-pick-all]")) pickAll(box.checked);
  });
  document.addEventListener("htmx:afterSwap", showSelection);
  showSelection();
}
