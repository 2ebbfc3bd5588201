/** A tab of a run with nothing live of its own: only its header follows the run. */

import { live } from "assay/live.js";
import { onRunFrame, refreshHeader } from "assay/run.js";

/** @type {{id: string, cursor: number, live: boolean}} */
const run = JSON.parse(document.getElementById("run-info")?.textContent ?? "{}");
if (run.live) live.subscribe({ topic: "run", run: run.id, cursor: run.cursor, series: [] }, { frame: onRunFrame, reset: refreshHeader, poll: refreshHeader });
