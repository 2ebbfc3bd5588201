/** The cluster page reads itself again when something changed, at most once a second. */

import { live } from "assay/live.js";
import { startTable } from "assay/table.js";

let waiting = 0;
function refresh() {
  waiting ||= window.setTimeout(() => {
    waiting = 0;
    htmx.trigger("#cluster", "assay:refresh");
  }, 1000);
}

startTable();
live.subscribe({ topic: "cluster" }, { changed: refresh, poll: refresh });
setInterval(refresh, 15_000);
