/** What a screen reader is told of a page that changes by itself: the newest news only, at most once in ten seconds. */

const EVERY = 10_000;

let last = -Infinity;
let waiting = "";
let timer = 0;

/** @param {string} text */
export function announce(text) {
  waiting = text;
  if (timer) return;
  timer = window.setTimeout(say, Math.max(0, last + EVERY - performance.now()));
}

function say() {
  timer = 0;
  last = performance.now();
  const region = document.querySelector("[data-announce]");
  if (region && region.textContent !== waiting) region.textContent = waiting;
}
