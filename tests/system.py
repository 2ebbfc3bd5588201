"""System packages that some tests need, and the reason when they are absent."""

import shutil

from tests import docker_engine


def chromium() -> str | None:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def why_no_chromium() -> str | None:
    return None if chromium() else "no Chromium on this machine; install it with: apt-get install -y chromium"


def why_no_docker() -> str | None:
    if not shutil.which("docker"):
        return "no docker client on this machine; install it with: apt-get install -y docker.io"
    reason = None if docker_engine.answers() else docker_engine.why_cannot_start()
    return f"no container engine answers, and {reason}" if reason else None
