"""task.toml: the whole example, legacy keys, defaults, modes, and what is refused."""

import pytest

from runner.contract.harbor import InvalidManifest, host_problem, is_task_name, mebibytes, read_manifest

WHOLE = """
schema_version = "1.4"
artifacts = ["/app/heat/src"]
[task]
name = "demo/heat-repair-sign-l12"
description = "one line"
[metadata.provenance]
upstream_repo = "https://example.org/heat"
source_archive_sha256 = "aa"
[metadata.taxonomy]
category = "repair"
mode = "injected"
family = "sign"
tree = "2d"
affected_checks = ["heat-32", "heat-64"]
floor_native_estimate = 0.35
canary = "demo-canary GUID 0"
difficulty = "easy"
straw_timeout_sec = 120
legacy_hardness = 3
[metadata.difficulty_facts]
measured_pass_rates = {"model-a" = [3, 4]}
container_floor = 0.3
k_sites = 1
[environment]
cpus = 4
memory_mb = 8192
build_timeout_sec = 3600.0
network_mode = "allowlist"
allowed_hosts = ["*.example.org"]
[agent]
timeout_sec = 3600.0
[verifier]
timeout_sec = 900.0
[verifier.environment]
build_timeout_sec = 7200.0
network_mode = "no-network"
"""


def test_every_key_of_the_example_is_read():
    manifest = read_manifest(WHOLE)
    assert (manifest.name, manifest.short_name) == ("demo/heat-repair-sign-l12", "heat-repair-sign-l12")
    assert (manifest.taxonomy.family, manifest.taxonomy.affected_checks) == ("sign", ["heat-32", "heat-64"])
    assert (manifest.taxonomy.floor_native_estimate, manifest.facts.container_floor) == (0.35, 0.3)
    assert manifest.facts.measured_pass_rates == {"model-a": [3, 4]}
    assert (manifest.agent_network, manifest.agent_hosts) == ("allowlist", ["*.example.org"])
    assert (manifest.verifier.mode, manifest.verifier_container.build_timeout_sec) == ("separate", 7200.0)
    assert (manifest.verifier_container.network_mode, manifest.artifacts) == ("no-network", ["/app/heat/src"])


def test_what_is_absent_has_harbors_defaults():
    manifest = read_manifest('[task]\nname = "a/b"')
    assert (manifest.environment.build_timeout_sec, manifest.verifier.timeout_sec, manifest.agent.timeout_sec) == (600.0, 600.0, None)
    assert (manifest.agent_network, manifest.verifier.mode, manifest.verifier_container) == ("public", "shared", manifest.environment)
    check = read_manifest('[environment.healthcheck]\ncommand = "true"').environment.healthcheck
    assert (check.interval_sec, check.timeout_sec, check.start_period_sec, check.start_interval_sec, check.retries) == (5, 30, 0, 5, 3)


def test_legacy_keys_map_to_the_new_ones():
    manifest = read_manifest('version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false')
    assert manifest.schema_version == "1.0"
    assert (manifest.environment.memory_mb, manifest.environment.storage_mb, manifest.agent_network) == (2048, 512, "no-network")
    assert read_manifest("[environment]\nallow_internet = true").agent_network == "public"
    assert read_manifest('[environment]\nmemory = "2G"\nmemory_mb = 100').environment.memory_mb == 100


@pytest.mark.parametrize("text, megabytes", [("2G", 2048), ("1.5GiB", 1536), ("512M", 512), ("1024K", 1), ("1T", 1048576), ("4 g", 4096)])
def test_sizes(text, megabytes):
    assert mebibytes(text) == megabytes


@pytest.mark.parametrize(
    "verifier, mode",
    [
        ("", "shared"),
        ("[verifier.environment]\ncpus = 1", "separate"),
        ('[verifier]\nenvironment_mode = "separate"', "separate"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1', "shared"),
    ],
)
def test_an_explicit_verifier_mode_wins_over_a_section(verifier, mode):
    assert read_manifest(verifier).verifier.mode == mode


def test_the_agents_phase_overrides_the_network():
    manifest = read_manifest('[environment]\nnetwork_mode = "public"\n[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["10.0.0.0/8"]')
    assert (manifest.agent_network, manifest.agent_hosts) == ("allowlist", ["10.0.0.0/8"])


@pytest.mark.parametrize(
    "text, words",
    [
        ("[task", "not TOML"),
        ('schema_version = "2.0"', "'2.0' is unknown"),
        ("task = 3", "task: must be a table"),
        ('[environment]\ncpus = "4"', "'4' is no number"),
        ("[environment]\nmemory_mb = -1", "memory_mb"),
        ('[environment]\nmemory = "much"', "'much' is no size"),
        ('[environment]\nnetwork_mode = "open"', "network_mode"),
        ("[metadata.taxonomy]\nfloor_native_estimate = 1.5", "floor_native_estimate"),
        ("[metadata.taxonomy]\nfloor_native_estimate = nan", "floor_native_estimate"),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(InvalidManifest, match=words):
        read_manifest(text)


def test_steps_are_seen():
    assert read_manifest('[[steps]]\nname = "a"').has_steps
    assert not read_manifest("").has_steps


@pytest.mark.parametrize("host", ["example.org", "*.example.org", "10.0.0.1", "10.0.0.0/8", "::1", "fe80::/10", "localhost"])
def test_hosts_of_an_allowlist(host):
    assert host_problem(host) is None


@pytest.mark.parametrize("host", ["https://example.org", "example.org:443", "example.org/path", "a b", "*", "exa*mple.org", ""])
def test_no_host(host):
    assert host_problem(host)


@pytest.mark.parametrize(
    "name, good", [("a/b", True), ("a/b-1.x", True), ("b", False), ("a/../b", False), ("a/b/c", False), ("/b", False), ("a/b..c", False)]
)
def test_task_names(name, good):
    assert is_task_name(name) is good
