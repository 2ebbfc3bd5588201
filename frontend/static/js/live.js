import { announce } from "assay/announce.js";
import { isSignedOut, signedOut } from "assay/session.js";

/**
 * The page's one socket. A subscription names a topic; the server answers with frames (runs, from a cursor) or with `changed`
 * (lists, to be re-read). When the socket is lost the page says so, counts down to the next try, and polls meanwhile.
 *
 * The server begins after the cursor of the subscription and leaves nothing out; a row may come twice. After a loss we subscribe from the
 * cursor we hold; when that is too far behind, the server answers `reset` and the page reads its snapshot again.
 *
 * Who is signed out is not served again by asking again: the page says so and neither tries nor polls.
 */

/**
 * @typedef {{topic: "run", run: string, cursor?: number, series?: string[], logs?: boolean, episodes?: boolean}
 *   | {topic: "runs"} | {topic: "cluster"} | {topic: "episode", episode: string}} Topic
 * @typedef {[attempt: number, step: number, value: number | string, wall: number]} LivePoint
 * @typedef {{run: string, cursor: number, points: Record<string, LivePoint[]>, names: string[], episodes: any[], logs: any[], logs_skipped: number,
 *   events: any[], run_state: any}} Frame
 * @typedef {{frame?: (frame: Frame) => void, changed?: (ids: string[]) => void, reset?: () => void, poll?: () => void}} Handlers
 * @typedef {{topic: any, handlers: Handlers}} Subscription
 */

const POLL_EVERY = 5000;
const PING_EVERY = 10_000;
/** A connection on which so many pings in a row brought nothing is dead: a broken line tells nobody. Pings, not seconds: hidden pages ping seldom. */
const UNANSWERED = 2;
const CONNECT_WITHIN = 20_000;
const LONGEST_WAIT = 30;
/** The close code of a socket without a session. */
const NOT_SIGNED_IN = 4401;

class Live {
  /** @type {Subscription[]} */ #subscriptions = [];
  /** @type {WebSocket | null} */ #socket = null;
  #failures = 0;
  #countdown = 0;
  #timer = 0;
  #poller = 0;
  #pinger = 0;
  #unanswered = 0;

  /**
   * @param {Topic} topic @param {Handlers} handlers
   * @returns {{update: (changes: object) => void, close: () => void}} `update` changes the topic, e.g. its series, from the present cursor on
   */
  subscribe(topic, handlers) {
    const subscription = { topic: { ...topic }, handlers };
    this.#subscriptions.push(subscription);
    if (!this.#socket) this.#open();
    else this.#send("subscribe", [subscription.topic]);
    return {
      update: (changes) => {
        Object.assign(subscription.topic, changes);
        this.#send("subscribe", [subscription.topic]);
      },
      close: () => {
        this.#subscriptions = this.#subscriptions.filter((other) => other !== subscription);
        this.#send("unsubscribe", [subscription.topic]);
      },
    };
  }

  /** Try again now instead of waiting. */
  retry() {
    this.#countdown = 0;
    this.#open();
  }

  /** Neither tries again nor polls. */
  stop() {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
    clearTimeout(this.#timer);
    clearInterval(this.#pinger);
    clearInterval(this.#poller);
    showLost(null);
    showStatus("Signed out");
  }

  #open() {
    if (isSignedOut()) return;
    clearTimeout(this.#timer);
    this.#socket?.close();
    if (this.#failures > 1) showLost(0);
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live`);
    this.#socket = socket;
    this.#timer = window.setTimeout(() => this.#giveUp(), CONNECT_WITHIN);
    socket.onopen = () => socket === this.#socket && this.#onOpen();
    socket.onmessage = (event) => socket === this.#socket && this.#onMessage(JSON.parse(event.data));
    socket.onclose = (event) => socket === this.#socket && (event.code === NOT_SIGNED_IN ? signedOut() : this.#onClose());
  }

  /** The line broke without a word: the browser would wait for minutes before it says so. */
  #giveUp() {
    const silent = this.#socket;
    this.#socket = null;
    silent?.close();
    this.#failures = Math.max(this.#failures, 1);
    this.#onClose();
  }

  #ping() {
    if (this.#unanswered >= UNANSWERED) return this.#giveUp();
    this.#unanswered += 1;
    this.#write({ type: "ping" });
  }

  #onOpen() {
    clearTimeout(this.#timer);
    this.#failures = 0;
    this.#unanswered = 0;
    clearInterval(this.#poller);
    this.#poller = 0;
    this.#pinger = window.setInterval(() => this.#ping(), PING_EVERY);
    this.#send("subscribe", this.#subscriptions.map((subscription) => subscription.topic));
    showLost(null);
    showStatus("Live");
  }

  #onClose() {
    clearTimeout(this.#timer);
    clearInterval(this.#pinger);
    this.#failures += 1;
    this.#countdown = Math.min(LONGEST_WAIT, 2 ** Math.min(this.#failures, 5) - 1);
    if (!this.#poller) this.#poller = window.setInterval(() => this.#poll(), POLL_EVERY);
    showStatus("Polling");
    this.#tick();
  }

  #tick() {
    if (this.#countdown <= 0) return this.#open();
    // The first loss is often a server that restarts: say nothing before a second try failed.
    if (this.#failures > 1) showLost(this.#countdown);
    this.#countdown -= 1;
    this.#timer = window.setTimeout(() => this.#tick(), 1000);
  }

  #poll() {
    for (const { handlers } of this.#subscriptions) handlers.poll?.();
  }

  /** @param {any} message */
  #onMessage(message) {
    this.#unanswered = 0;
    if (message.type === "frame") this.#onFrame(message);
    else if (message.type === "changed") this.#matching(message.topic).forEach(({ handlers }) => handlers.changed?.(message.ids ?? []));
    else if (message.type === "reset") this.#onReset(message.run);
    else if (message.type === "error") console.warn("live:", message.detail);
  }

  /** @param {Frame & {topic: string}} frame */
  #onFrame(frame) {
    for (const { topic, handlers } of this.#matching("run", frame.run)) {
      topic.cursor = Math.max(topic.cursor ?? 0, frame.cursor);
      handlers.frame?.(frame);
    }
  }

  /** @param {string} run */
  #onReset(run) {
    for (const { topic, handlers } of this.#matching("run", run)) {
      delete topic.cursor;
      this.#send("subscribe", [topic]);
      handlers.reset?.();
    }
  }

  /** @param {string} name @param {string} [run] @returns {Subscription[]} */
  #matching(name, run) {
    return this.#subscriptions.filter(({ topic }) => topic.topic === name && (run === undefined || topic.run === run));
  }

  /** @param {"subscribe" | "unsubscribe"} type @param {object[]} topics */
  #send(type, topics) {
    if (topics.length) this.#write({ type, topics });
  }

  /** @param {object} message */
  #write(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }
}

/** @param {number | null} seconds until the next try; null when connected */
function showLost(seconds) {
  document.documentElement.dataset.connection = seconds === null ? "live" : "lost";
  const banner = /** @type {HTMLElement | null} */ (document.querySelector("[data-live-banner]"));
  if (!banner) return;
  if (banner.hidden !== (seconds === null)) announce(seconds === null ? "The live connection is back" : "The live connection is lost; the page polls");
  banner.hidden = seconds === null;
  const words = banner.querySelector("span");
  if (words) words.textContent = `The live connection is lost. This page reads every ${POLL_EVERY / 1000} s meanwhile; ${seconds ? `next try in ${seconds} s` : "trying now"}.`;
}

/** @param {string} word */
function showStatus(word) {
  const element = /** @type {HTMLElement | null} */ (document.querySelector("[data-live-status]"));
  if (!element) return;
  element.hidden = false;
  element.textContent = word;
  element.dataset.liveStatus = word.toLowerCase();
}

export const live = new Live();

document.addEventListener("assay:signed-out", () => live.stop());

document.addEventListener("click", (event) => {
  if (/** @type {HTMLElement} */ (event.target).closest("[data-live-retry]")) live.retry();
});
