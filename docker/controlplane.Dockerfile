# Web, worker and beat. Any Debian with Python 3.11 or newer is a base: the default, or one made by docker/build-base.sh without a registry.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}
ENV PYTHONUNBUFFERED=1 ASSAY_MODE=production ASSAY_HOME=/app/.assay PATH=/app/.venv/bin:$PATH
RUN command -v python3 >/dev/null || (apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*)
RUN useradd --system --create-home --uid 10001 assay && install -d -o assay /app /srv/assay
WORKDIR /app
COPY requirements.txt ./
RUN python3 -m venv .venv && .venv/bin/pip install --no-cache-dir -q -r requirements.txt
COPY manage.py ./
COPY controlplane controlplane
COPY frontend frontend
COPY runner runner
# Settings refuse to load without addresses; collecting static files uses none of them.
RUN ASSAY_MODE=embedded python manage.py collectstatic --noinput -v 0 && rm -f .assay/secret_key && chown -R assay .assay
USER assay
EXPOSE 8000
CMD ["python", "-m", "uvicorn", "controlplane.asgi:application", "--host", "0.0.0.0", "--port", "8000", \
     "--loop", "uvloop", "--http", "httptools", "--lifespan", "off", "--no-access-log", "--forwarded-allow-ips", "127.0.0.1"]
