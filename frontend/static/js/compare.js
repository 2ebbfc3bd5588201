/** Several runs over one another, live where they still run. */

import { startDashboard } from "assay/dashboard.js";

startDashboard();
