/** The overview of a run: its charts live, and its header. */

import { startDashboard } from "assay/dashboard.js";
import { onRunFrame, refreshHeader } from "assay/run.js";

startDashboard(onRunFrame);
setInterval(refreshHeader, 15_000);
