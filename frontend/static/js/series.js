/**
 * Buckets of one series, as the server cuts them, kept exact while points arrive.
 *
 * Edges lie on multiples of `width`, so that a point's bucket never depends on when the page was loaded. A merge that cannot be exact
 * (another attempt, or a point older than the trailing bucket) is refused: the chart then reads the server's buckets again.
 */

/**
 * @typedef {{start: number[], min: (number|null)[], max: (number|null)[], mean: (number|null)[], last: (number|null)[], count: number[],
 *   nan: number[], positive_infinite: number[], negative_infinite: number[], last_step?: number[], wall?: (number|null)[],
 *   tokens?: (number|null)[]}} Columns
 * @typedef {{cursor: number, width: number, from: number, to: number, attempts: {number: number, first_step: number}[],
 *   series: Record<string, Columns>}} Answer
 */

const NON_FINITE = /** @type {const} */ ({ NaN: "nan", Infinity: "positive_infinite", "-Infinity": "negative_infinite" });

/** @returns {Columns} */
export function emptyColumns() {
  return { start: [], min: [], max: [], mean: [], last: [], count: [], nan: [], positive_infinite: [], negative_infinite: [], wall: [] };
}

export class Series {
  /** @param {Columns} columns @param {number} width @param {number} attempt the newest attempt in them */
  constructor(columns, width, attempt) {
    // A mean whose sum left float64 comes as text; there is no place to draw it.
    columns.mean = columns.mean.map((value) => (typeof value === "number" ? value : null));
    this.columns = columns;
    this.width = width;
    this.attempt = attempt;
    this.lastStep = Math.max(columns.last_step?.at(-1) ?? -1, columns.start.at(-1) ?? -1);
    /** @type {Set<number>} steps merged since the server cut the buckets; a frame may bring a row twice */
    this.merged = new Set();
  }

  get length() {
    return this.columns.start.length;
  }

  /**
   * @param {number} attempt @param {number} step @param {number | string} value @param {number} wall
   * @returns {boolean} false when the server must be asked again
   */
  merge(attempt, step, value, wall) {
    if (attempt !== this.attempt && this.length) return false;
    this.attempt = attempt;
    if (this.merged.has(step)) return true;
    if (step <= this.lastStep) return this.width === 1 && this.columns.start.includes(step);
    const start = Math.floor(step / this.width) * this.width;
    if (start > (this.columns.start.at(-1) ?? -Infinity)) this.#append(start);
    this.#add(this.length - 1, value, wall);
    this.lastStep = step;
    this.merged.add(step);
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
    c.wall?.push(null);
  }

  /** @param {number} at @param {number | string} value @param {number} wall */
  #add(at, value, wall) {
    const c = this.columns;
    if (c.wall) c.wall[at] = wall;
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
 * A series over wall seconds, each sample its own bucket.
 * @param {[wall: number, value: number | string][]} samples @returns {Series}
 */
export function ofSamples(samples) {
  const series = new Series(emptyColumns(), 1, 1);
  samples.forEach(([wall, value], index) => series.merge(1, index, value, wall));
  return series;
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
