"""Labels on every container, network and image, so that anything left over names its owner."""

HOUSE, NODE, ATTEMPT, EPISODE, ROLE = "assay.house", "assay.node", "assay.attempt", "assay.episode", "assay.role"
TASK = "assay.task"
