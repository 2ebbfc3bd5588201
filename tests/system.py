"""System packages that some tests need, and the reason when they are absent."""

import shutil
import subprocess


def chromium() -> str | None:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def why_no_chromium() -> str | None:
    return None if chromium() else "no Chromium on this machine; install it with: apt-get install -y chromium"


def why_no_docker() -> str | None:
    if not shutil.which("docker"):
        return "no docker client on this machine; install it with: apt-get install -y docker.io"
    answer = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True)
    return None if answer.returncode == 0 else f"no container engine answers: {answer.stderr.strip()}"
