/**
 * The token view: every token of an episode, coloured by one channel, underlined when it is in the loss, barred by its author.
 * Only the lines in sight are in the page, so that forty thousand tokens scroll like forty.
 */

import { ask } from "assay/session.js";

/**
 * @typedef {{total: number, from: number, to: number, token_id: number[], text: string[] | null, author: number[] | null,
 *   mask: number[] | null, trained_mask: number[] | null, logprob: (number | null)[] | null, learner_logprob: (number | null)[] | null,
 *   teacher_logprob: (number | null)[] | null, advantage: (number | null)[] | null, entropy: (number | null)[] | null}} Tokens
 * @typedef {{values: (number | null)[], low: number, high: number, diverging: boolean}} Channel
 */

const LINE = 24;
const SPARE_LINES = 12;
const AUTHORS = ["environment", "template", "student", "teacher", "gold", "bridge"];
const ODD = /[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/;
const CHANNELS = ["logprob", "learner_logprob", "difference", "advantage", "entropy", "teacher_logprob"];

class TokenView {
  /** @param {Tokens} tokens @param {HTMLElement} box @param {HTMLElement} detail @param {HTMLSelectElement} select */
  constructor(tokens, box, detail, select) {
    this.tokens = tokens;
    this.box = box;
    this.detail = detail;
    this.select = select;
    this.current = -1;
    this.size = "";
    /** @type {number[]} */ this.starts = [];
    this.sheet = document.createElement("div");
    this.sheet.className = "token-sheet";
    box.replaceChildren(this.sheet);
    this.shown = (tokens.text ?? tokens.token_id.map((id) => `#${id} `)).map(readable);
    this.channel = channelOf(tokens, select.value);
    this.listen();
    this.layOut();
  }

  listen() {
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    // An observer reports once at the start; laid out we are by then.
    new ResizeObserver(() => this.size !== sizeOf(this.box) && this.layOut()).observe(this.box);
    this.select.addEventListener("change", () => {
      this.channel = channelOf(this.tokens, this.select.value);
      this.draw();
    });
    this.box.addEventListener("pointerover", (event) => this.point(/** @type {HTMLElement} */ (event.target)));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** Breaks the tokens into lines of the box's width; a token that ends a line of text ends ours. */
  layOut() {
    const { character, edge } = measure(this.box);
    const width = Math.max(20 * character, this.box.clientWidth - 24);
    this.starts = [0];
    let used = 0;
    this.shown.forEach((text, index) => {
      const wide = text.length * character + edge;
      if (used + wide > width && used) {
        this.starts.push(index);
        used = 0;
      }
      used = text.endsWith("↵") ? Infinity : used + wide;
    });
    this.sheet.style.height = `${this.starts.length * LINE}px`;
    this.size = sizeOf(this.box);
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / LINE) - SPARE_LINES);
    const last = Math.min(this.starts.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / LINE) + SPARE_LINES);
    const lines = [];
    for (let line = first; line < last; line += 1) lines.push(this.line(line));
    this.sheet.replaceChildren(...lines);
    showScale(this.channel);
  }

  /** @param {number} number */
  line(number) {
    const line = document.createElement("div");
    line.className = "token-line";
    line.style.top = `${number * LINE}px`;
    const end = this.starts[number + 1] ?? this.shown.length;
    for (let index = this.starts[number]; index < end; index += 1) line.append(this.token(index));
    return line;
  }

  /** @param {number} index */
  token(index) {
    const element = document.createElement("span");
    element.className = `token a${this.tokens.author?.[index] ?? 0}`;
    element.textContent = this.shown[index];
    element.dataset.index = String(index);
    if (inLoss(this.tokens, index)) element.classList.add("in-loss");
    if (index === this.current) element.classList.add("current");
    element.style.background = colour(this.channel, index);
    return element;
  }

  /** @param {HTMLElement} target */
  point(target) {
    const index = target.closest(".token")?.getAttribute("data-index");
    if (index) this.detail.textContent = describe(this.tokens, Number(index));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const last = this.shown.length - 1;
    const next = { ArrowRight: this.current + 1, ArrowLeft: this.current - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.current = Math.min(last, Math.max(0, next));
    // A walk by keyboard is heard; a pointer that passes over is not.
    this.detail.setAttribute("aria-live", "polite");
    const line = this.starts.findLastIndex((start) => start <= this.current);
    if (line * LINE < this.box.scrollTop || (line + 1) * LINE > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = line * LINE;
    this.draw();
    this.detail.textContent = describe(this.tokens, this.current);
  }
}

/** @param {string} text @returns {string} with blanks and line ends to be seen */
function readable(text) {
  // Most tokens hold nothing odd, and there are tens of thousands of them.
  if (text && !ODD.test(text)) return text;
  return text.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, "␛").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, "▯") || "∅";
}

/** @param {HTMLElement} box */
const sizeOf = (box) => `${box.clientWidth} ${box.clientHeight}`;

/** @param {HTMLElement} box @returns {{character: number, edge: number}} pixels: of one character, and of the bar that each token has besides */
function measure(box) {
  const probe = document.createElement("span");
  probe.className = "token";
  probe.textContent = "0".repeat(50);
  box.append(probe);
  const edge = probe.offsetWidth - probe.clientWidth;
  const character = (probe.getBoundingClientRect().width - edge) / 50;
  probe.remove();
  return { character: character > 0 ? character : 8, edge };
}

/** @param {Tokens} tokens @param {number} index */
function inLoss(tokens, index) {
  return Boolean((tokens.trained_mask ?? tokens.mask)?.[index]);
}

/** @param {Tokens} tokens @param {string} name @returns {Channel} */
function channelOf(tokens, name) {
  const values = name === "difference" ? difference(tokens) : /** @type {any} */ (tokens)[name] ?? [];
  const known = Float64Array.from(values.filter((/** @type {number | null} */ value) => value !== null)).sort();
  const diverging = name === "difference" || name === "advantage";
  const low = known.at(Math.floor(known.length * 0.02)) ?? 0, high = known.at(Math.floor(known.length * 0.98)) ?? 0;
  const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return { values, diverging, low: diverging ? -reach : low, high: diverging ? reach : high };
}

/** @param {Tokens} tokens @returns {(number | null)[]} */
function difference(tokens) {
  const { learner_logprob: learner, logprob: sampler } = tokens;
  if (!learner || !sampler) return [];
  return learner.map((value, index) => (value === null || sampler[index] === null ? null : value - /** @type {number} */ (sampler[index])));
}

/** @param {Channel} channel @param {number} index @returns {string} a CSS background */
function colour(channel, index) {
  const value = channel.values[index];
  if (value === null || value === undefined) return "none";
  if (channel.diverging) {
    const strength = Math.min(1, Math.abs(value) / channel.high);
    return `color-mix(in srgb, var(${value < 0 ? "--bad" : "--good"}) ${Math.round(55 * strength)}%, transparent)`;
  }
  const place = channel.high > channel.low ? (value - channel.low) / (channel.high - channel.low) : 0;
  return `color-mix(in srgb, var(--accent) ${Math.round(50 * Math.min(1, Math.max(0, 1 - place)))}%, transparent)`;
}

/** @param {Channel} channel */
function showScale(channel) {
  const scale = /** @type {HTMLElement} */ (document.querySelector(".scale"));
  scale.classList.toggle("diverging", channel.diverging);
  const [low, high] = scale.querySelectorAll("i");
  low.textContent = channel.values.length ? channel.low.toFixed(2) : "not recorded";
  high.textContent = channel.values.length ? channel.high.toFixed(2) : "";
}

/** @param {Tokens} tokens @param {number} index */
function describe(tokens, index) {
  const values = CHANNELS.map((name) => [name, name === "difference" ? difference(tokens)[index] : /** @type {any} */ (tokens)[name]?.[index]]);
  const known = values.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => `${String(name).replaceAll("_", " ")} ${value.toFixed(4)}`);
  const author = AUTHORS[tokens.author?.[index] ?? 0];
  return [`${index}: ${JSON.stringify(tokens.text?.[index] ?? "")}`, `id ${tokens.token_id[index]}`, author, inLoss(tokens, index) ? "in the loss" : "not in the loss", ...known].join(" · ");
}

/** @param {string} episode Fetch the tokens and show them, or say why there are none. */
export async function openTokens(episode) {
  const box = /** @type {HTMLElement} */ (document.querySelector("[data-tokens]"));
  const detail = /** @type {HTMLElement} */ (document.querySelector("[data-token-detail]"));
  const select = /** @type {HTMLSelectElement} */ (document.querySelector("[data-channel]"));
  box.textContent = "Reading tokens…";
  const answer = await ask(`/api/v1/episodes/${episode}/tokens`);
  const body = await answer.json();
  if (!answer.ok) {
    box.textContent = body.detail || body.title;
    return;
  }
  // What the policy wrote in an evaluation would be trained on in training, and is not.
  if (box.hasAttribute("data-held-out")) body.mask = body.trained_mask = null;
  for (const author of new Set(body.author ?? [])) document.querySelector(`[data-author-key="${author}"]`)?.removeAttribute("hidden");
  for (const option of select.options) option.disabled = option.value === "difference" ? !body.learner_logprob : !body[option.value];
  new TokenView(body, box, detail, select);
}
