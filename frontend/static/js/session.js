/**
 * Somebody who was signed out meanwhile: the page says so once, with the way back, and asks the server no more, for each answer would
 * be the same. What a click asked for leads to the sign-in page itself (htmx follows `HX-Redirect`); what the page asks for unasked never
 * takes it away from under its reader.
 */

import { announce } from "assay/announce.js";

const SIGNED_OUT = 401;
let out = false;

/** @returns {boolean} */
export const isSignedOut = () => out;

/**
 * `fetch` for what a page shows. Signed out, it answers 401 without asking.
 * @param {string} url @param {RequestInit} [options] @returns {Promise<Response>}
 */
export async function ask(url, options = {}) {
  if (out) return Response.json({ title: "You are signed out" }, { status: SIGNED_OUT });
  const headers = new Headers(options.headers);
  headers.set("X-Requested-With", "XMLHttpRequest");
  const answer = await fetch(url, { ...options, headers });
  if (answer.status === SIGNED_OUT) signedOut();
  return answer;
}

/** Says so and tells the rest of the page (`assay:signed-out`). */
export function signedOut() {
  if (out) return;
  out = true;
  const banner = /** @type {HTMLElement} */ (document.querySelector("[data-signed-out]"));
  const link = /** @type {HTMLAnchorElement} */ (banner.querySelector("a"));
  link.addEventListener("click", nameHere);
  nameHere();
  banner.hidden = false;
  announce("You are signed out; this page no longer updates");
  document.dispatchEvent(new CustomEvent("assay:signed-out"));
}

/** The way back leads to what the page shows when it is taken: filters may change before. */
function nameHere() {
  const link = /** @type {HTMLAnchorElement} */ (document.querySelector("[data-signed-out] a"));
  link.search = new URLSearchParams({ next: location.pathname + location.search }).toString();
}

/** @param {any} event whether a person's own click or key asked for it */
const isAskedFor = (event) => Boolean(event.detail.requestConfig?.triggeringEvent?.isTrusted);

/** @param {any} event */
function onAnswer(event) {
  if (event.detail.xhr.status !== SIGNED_OUT || isAskedFor(event)) return;
  event.preventDefault();
  signedOut();
}

export function startSession() {
  document.addEventListener("htmx:beforeOnLoad", onAnswer);
  document.addEventListener("htmx:beforeRequest", (event) => out && !isAskedFor(event) && event.preventDefault());
  // Back to an address that htmx made: its answer can only be shown or not.
  document.addEventListener("htmx:historyCacheMissLoadError", (/** @type {any} */ event) => event.detail.xhr.status === SIGNED_OUT && signedOut());
}
