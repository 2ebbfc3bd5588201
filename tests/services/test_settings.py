"""Settings come from one typed module, and production mode has no defaults."""

import os
import subprocess
import sys

import pytest

from controlplane.env import CHECKOUT, SettingsError, read_environment
from controlplane.settings import database

PRODUCTION = {
    "ASSAY_MODE": "production",
    "ASSAY_URL": "https://assay.example.org/",
    "ASSAY_STORAGE": "/srv/assay",
    "DATABASE_URL": "postgresql://assay:pw@db.example.org:5433/experiments?sslmode=require",
    "REDIS_URL": "redis://:pw@redis.example.org:6379/0",
    "RAY_ADDRESS": "http://ray-head:8265",
    "SECRET_KEY": "x" * 50,
}


@pytest.mark.parametrize("missing", sorted(set(PRODUCTION) - {"ASSAY_MODE"}))
def test_production_refuses_each_missing_variable_by_name(missing, tmp_path):
    given = {key: value for key, value in PRODUCTION.items() if key != missing}
    with pytest.raises(SettingsError, match=f"^{missing} is not set.*: set it to "):
        read_environment({**given, "ASSAY_HOME": str(tmp_path)})


def test_production_ignores_what_an_embedded_house_left(tmp_path):
    (tmp_path / "environment").write_text("REDIS_URL=unix:///tmp/old.sock\n")
    given = {key: value for key, value in PRODUCTION.items() if key != "REDIS_URL"}
    with pytest.raises(SettingsError, match="^REDIS_URL"):
        read_environment({**given, "ASSAY_HOME": str(tmp_path)})


def test_django_does_not_start_without_the_secret():
    environment = {**{key: value for key, value in PRODUCTION.items() if key != "SECRET_KEY"}, "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "manage.py", "check"], cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "SECRET_KEY is not set" in done.stderr and "set it to 50 or more random characters" in done.stderr


def test_production_values(tmp_path):
    read = read_environment({**PRODUCTION, "ASSAY_HOME": str(tmp_path)})
    assert (read.public_url, read.https, read.debug) == ("https://assay.example.org", True, False)
    assert "assay.example.org" in read.allowed_hosts


def test_a_house_makes_one_secret_that_only_its_owner_reads(tmp_path):
    home = tmp_path / "home"
    first, second = (read_environment({"ASSAY_HOME": str(home)}).secret_key for _ in range(2))
    assert first == second and len(first) > 50
    assert (home / "secret_key").stat().st_mode & 0o777 == 0o600


def test_the_environment_file_fills_what_is_unset_and_yields_to_what_is_set(tmp_path):
    (tmp_path / "environment").write_text("RAY_ADDRESS=http://127.0.0.1:20001\nASSAY_URL=http://127.0.0.1:8000\n")
    read = read_environment({"ASSAY_HOME": str(tmp_path), "ASSAY_URL": "http://127.0.0.1:9000"})
    assert (read.ray_address, read.public_url) == ("http://127.0.0.1:20001", "http://127.0.0.1:9000")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ASSAY_MODE", "prod", "set it to one of embedded, production"),
        ("ASSAY_URL", "assay.example.org", "must be an http:// or https:// address"),
        ("RAY_ADDRESS", "ray://head:10001", "must be an http:// or https:// address"),
        ("ASSAY_DB_POOL", "many", "must be a whole number"),
    ],
)
def test_a_malformed_value_is_named(name, value, words, tmp_path):
    with pytest.raises(SettingsError, match=f"(?s){name} is '{value}'.*{words}"):
        read_environment({**PRODUCTION, "ASSAY_HOME": str(tmp_path), name: value})


def test_database_urls():
    tcp = database(PRODUCTION["DATABASE_URL"], pool=4)
    assert (tcp["HOST"], tcp["PORT"], tcp["NAME"], tcp["PASSWORD"]) == ("db.example.org", "5433", "experiments", "pw")
    assert tcp["OPTIONS"]["sslmode"] == "require" and tcp["OPTIONS"]["pool"]["max_size"] == 4
    socket = database("postgresql://assay:pw@/assay?host=%2Ftmp%2Fassay-0%2Fpg", pool=0)
    assert socket["HOST"] == "/tmp/assay-0/pg" and socket["OPTIONS"] == {}
