"""What a container episode's page shows: phases, checks beside the floor, deliveries, the patch; graded 0 and ungraded apart."""

from types import SimpleNamespace

from controlplane.episodes.container_facts import container_facts


def episode(score=0.0, ordinal=0, facts=None, **evidence):
    told = {"phases": {"env_setup": 6.0, "verifier": 3.0, "parse_reward": 1.0, "agent_execution": 1.0}} if facts is None else facts
    return SimpleNamespace(facts=told, evidence=evidence, score=score, grade_ordinal=ordinal, grade_reason="")


def test_an_episode_without_a_container_has_none():
    assert container_facts(episode(facts={})) is None


def test_phases_stand_in_their_order_and_what_is_inside_of_another_is_not_added_twice():
    found = container_facts(episode())
    assert [(phase.title, phase.share) for phase in found.phases] == [("Image and container", 60.0), ("Agent", 10.0), ("Verifier", 30.0)]
    assert found.seconds == 10.0


def test_zero_and_ungraded_are_said_differently():
    assert container_facts(episode(0.0)).sentence == "graded 0"
    assert container_facts(episode(None, sandbox_reason="reward_missing")).sentence == "not graded: reward_missing"
    assert container_facts(episode(None, ordinal=None)).sentence == "not graded: the verifier was never reached"
    assert container_facts(episode(1.0, ordinal=1)).sentence == "graded 1 after it was graded again"


def test_checks_stand_beside_the_floor():
    found = container_facts(episode(rewards={"reward": 0.75, "floor": 0.35, "check_heat_32": 1.0, "check_heat_64": 0.2, "odd": "x"}))
    assert [(check.name, check.at, check.is_above) for check in found.checks] == [("heat_32", 100.0, True), ("heat_64", 20.0, False)]
    assert found.floor == 0.35 and found.rewards == {"reward": 0.75, "floor": 0.35}


def test_a_check_with_a_floor_of_its_own_is_held_against_that():
    told = episode(rewards={"reward": 0.5, "floor": 0.35, "check_heat_32": 0.45, "check_heat_64": 0.2, "check_odd": 0.4})
    found = container_facts(told, {"heat_32": 0.5, "heat_64": 0.1})
    assert [(check.floor, check.is_above) for check in found.checks] == [(0.5, False), (0.1, True), (0.35, True)]


def test_a_patch_is_told_line_by_line():
    found = container_facts(episode(patch="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n c"))
    assert [kind for kind, _ in found.patch] == ["head", "head", "head", "remove", "add", "same"]


def test_what_a_runner_sends_amiss_breaks_no_page():
    found = container_facts(episode(facts={"phases": {"verifier": "long"}}, rewards=[1], floor="low", delivered=None))
    assert found.phases == [] and found.checks == [] and found.floor is None and found.delivered == []
