/**
 * Buckets of one series, as the server cuts them, kept exact while points arrive.
 *
 * Edges lie on multiples of `width`, so that a point's bucket never depends on when the page was loaded. A merge that cannot be exact
 * (another attempt, or a point older than the trailing bucket) is refused: the chart then reads the server's buckets again.
 */

/**
 * @typedef {{start: number[], min: (number|null)[], max: (number|null)[], mean: (number|null)[], last: (number|null)[], count: number[],
 *   nan: number[], positive_infinite: number[], negative_infinite: number[], x?: (number|null)[]}} Columns
 * @typedef {{cursor: number, width: number, from: number, to: number, attempts: {number: number, first_step: number}[],
 *   series: Record<string, Columns>}} Answer
 */

const NON_FINITE = /** @type {const} */ ({ NaN: "nan", Infinity: "positive_infinite", "-Infinity": "negative_infinite" });

/** @returns {Columns} */
export function emptyColumns() {
  return { start: [], min: [], max: [], mean: [], last: [], count: [], nan: [], positive_infinite: [], negative_infinite: [], x: [] };
}

export class Series {
  /** @param {Columns} columns @param {number} width @param {number} attempt the newest attempt in them */
  constructor(columns, width, attempt) {
    this.columns = columns;
    this.width = width;
    this.attempt = attempt;
    this.lastStep = columns.start.length ? columns.start[columns.start.length - 1] : -1;
  }

  get length() {
    return this.columns.start.length;
  }

  /**
   * @param {number} attempt @param {number} step @param {number | string} value @param {number} x its place on the axis
   * @returns {boolean} false when the server must be asked again
   */
  merge(attempt, step, value, x) {
    if (attempt !== this.attempt && this.length) return false;
    this.attempt = attempt;
    const start = Math.floor(step / this.width) * this.width;
    const trailing = this.length ? this.columns.start[this.length - 1] : -Infinity;
    if (start < trailing || (start === trailing && step < this.lastStep)) return false;
    if (start > trailing) this.#append(start);
    this.#add(this.length - 1, value, x);
    this.lastStep = step;
    return true;
  }

  /** @param {number} start */
  #append(start) {
    const c = this.columns;
    c.start.push(start);
    c.count.push(0);
    c.nan.push(0);
    c.positive_infinite.push(0);
    c.negative_infinite.push(0);
    for (const column of [c.min, c.max, c.mean, c.last]) column.push(null);
    c.x?.push(null);
  }

  /** @param {number} at @param {number | string} value @param {number} x */
  #add(at, value, x) {
    const c = this.columns;
    if (c.x) c.x[at] = x;
    if (typeof value === "string") {
      c[NON_FINITE[/** @type {keyof typeof NON_FINITE} */ (value)]][at] += 1;
      return;
    }
    c.count[at] += 1;
    c.min[at] = Math.min(c.min[at] ?? value, value);
    c.max[at] = Math.max(c.max[at] ?? value, value);
    c.mean[at] = (c.mean[at] ?? 0) + (value - (c.mean[at] ?? 0)) / c.count[at];
    c.last[at] = value;
  }

  /** @returns {number | null} the newest finite value */
  get latest() {
    for (let at = this.length - 1; at >= 0; at -= 1) if (this.columns.last[at] !== null) return this.columns.last[at];
    return null;
  }
}

/**
 * Exponential moving average, corrected for its start so that the first values are not pulled to zero.
 * @param {(number | null)[]} values @param {number} weight 0 (none) to below 1 @returns {(number | null)[]}
 */
export function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}
