"""Side-by-side measurements: `./assay bench NAME` runs `benchmarks.NAME`, prints one JSON line and keeps it in `records/`."""

NAMES = (
    "ingest",
    "query",
    "live",
    "list",
    "emit",
    "tokens",
    "pages",
    "transcript",
    "sandbox",
    "scienceworld",
    "rollout",
    "rollout_truth",
    "step",
    "learner",
    "scaling",
    "weight_transfer",
)
