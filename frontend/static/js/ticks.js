/** What the axes of a chart say: distinct and readable, however near the values lie to each other. */

const TICKS = 4;
const FEWEST_DIGITS = 3;
const MOST_DIGITS = 8;
/** What differs by less, as a part of its size, is drawn as one height: its ticks would need more digits than there is room for. */
const FLAT = 1e-6;
const FEW_STEPS = 8;

/**
 * @typedef {{range?: [number, number], tickformat: string, dtick?: number, tick0?: number}} Ticks for Plotly's axis
 */

export const PLAIN = { digits: FEWEST_DIGITS, tickformat: "~g" };

/**
 * The vertical axis over values from `low` to `high`.
 * @param {number} low @param {number} high
 * @returns {Ticks & {digits: number}} with a range only where the values are as good as equal; `digits` is how long a label gets
 */
export function heights(low, high) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return PLAIN;
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low > size * FLAT) return written(size, high - low);
  const room = size * 0.1 || 1;
  return { range: [low - room, high + room], ...written(size, 2 * room) };
}

/**
 * The horizontal axis over whole numbers, steps or tokens, from `low` to `high`.
 * @param {number} low @param {number} high @returns {Ticks & {range: [number, number]}}
 */
export function counts(low, high) {
  if (low > high) return { range: [0, 1], tickformat: ",d" };
  const spread = high - low;
  const room = Math.max(spread * 0.015, spread < FEW_STEPS ? 0.5 : 0);
  const range = /** @type {[number, number]} */ ([low - room, high + room]);
  // Between two steps there is nothing, so that no tick stands there.
  if (spread <= FEW_STEPS) return { range, tickformat: ",d", dtick: Math.max(1, Math.ceil(spread / TICKS)), tick0: 0 };
  return { range, tickformat: spread < high / 100 ? ",d" : "~s" };
}

/** With the digits that tell neighbouring ticks apart. @param {number} size @param {number} spread */
function written(size, spread) {
  const needed = Math.ceil(Math.log10((size / spread) * TICKS)) + 1;
  const digits = Math.min(Math.max(needed, FEWEST_DIGITS), MOST_DIGITS);
  return { digits, tickformat: `.${digits}~${size >= 1e4 ? "s" : "g"}` };
}
