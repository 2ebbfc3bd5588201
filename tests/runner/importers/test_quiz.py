from collections import Counter, defaultdict

import pytest

from runner.contract.bank import write_bank
from runner.contract.baselines import choice_baselines
from runner.environments.choice import read_payload
from runner.importers.quiz.bank import FAMILIES, quiz_bank
from runner.importers.quiz.family import Family
from runner.importers.quiz.questions import questions
from runner.importers.quiz.formulas import molar_mass


@pytest.fixture(scope="module")
def bank():
    return quiz_bank(3)


@pytest.fixture(scope="module")
def splits(bank):
    found = defaultdict(list)
    for task in bank[0]:
        found[task.split].append((task, read_payload(task)))
    return found


def texts(payload):
    return [choice.text for choice in payload.choices]


def test_size_and_domains(splits):
    assert len(splits["train"]) >= 600 and len(splits["eval"]) >= 300
    for pairs in splits.values():
        per_domain = Counter(task.domain for task, _ in pairs)
        assert set(per_domain) == {"Biology", "Chemistry", "Material", "Physics"}
        assert len(set(per_domain.values())) == 1


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_bank(bank):
    digest = write_bank([*bank[0], *bank[1]])[1]
    assert digest == write_bank([*quiz_bank(3)[0], *quiz_bank(3)[1]])[1]
    assert digest != write_bank([*quiz_bank(4)[0], *quiz_bank(4)[1]])[1]


def test_the_key_of_every_question_is_the_fact(splits):
    answers = {(family.name, subject): answer for family in FAMILIES for subject, answer in family.facts}
    for pairs in splits.values():
        for task, payload in pairs:
            subject = next(s for f, s in answers if f == task.family and s.replace(" ", "-") == task.key.split("/")[1])
            keyed = next(choice.text for choice in payload.choices if choice.label == payload.answer_key)
            assert subject.lower() in payload.question.lower() and keyed == answers[task.family, subject]


def test_nothing_about_the_options_alone_tells_the_key(splits):
    """Letter, length, text and the set of options: each guess is right one time in four."""
    for pairs in splits.values():
        base = choice_baselines([task for task, _ in pairs])
        assert base == {"chance": 0.25, "majority_letter": 0.25, "longest_option": pytest.approx(0.25)}
        keyed, offered = Counter(), Counter()
        for task, payload in pairs:
            for choice in payload.choices:
                offered[task.family, choice.text] += 1
                keyed[task.family, choice.text] += choice.label == payload.answer_key
        assert all(keyed[name] * 4 == offered[name] for name in offered)


def test_what_training_says_about_options_does_not_help_on_held_out_ones(splits):
    """The best guess from options alone: the offered text that was right most often in training among the same or similar options."""
    right_beside = Counter()
    for _, payload in splits["train"]:
        keyed = next(choice.text for choice in payload.choices if choice.label == payload.answer_key)
        right_beside.update((keyed, other) for other in texts(payload) if other != keyed)
    hits = 0.0
    for _, payload in splits["eval"]:
        votes = {c.label: sum(right_beside[c.text, other] - right_beside[other, c.text] for other in texts(payload)) for c in payload.choices}
        best = [label for label, vote in votes.items() if vote == max(votes.values())]
        hits += (payload.answer_key in best) / len(best)
    assert hits / len(splits["eval"]) <= 0.30


def test_held_out_questions_are_other_questions_with_other_options_about_the_same_facts(splits):
    asked = {split: {payload.question for _, payload in pairs} for split, pairs in splits.items()}
    offered = {split: {frozenset(texts(payload)) for _, payload in pairs} for split, pairs in splits.items()}
    keyed = {split: {(task.family, task.key.split("/")[1]) for task, _ in pairs} for split, pairs in splits.items()}
    assert not asked["train"] & asked["eval"]
    assert not offered["train"] & offered["eval"]
    assert keyed["train"] == keyed["eval"]


def test_no_question_is_asked_twice_with_the_same_options(splits):
    seen = Counter((payload.question, frozenset(texts(payload))) for pairs in splits.values() for _, payload in pairs)
    assert max(seen.values()) == 1


def test_demonstrations_show_no_answer_letter_of_a_question(bank, splits):
    """Letters of `format` are drawn at random, and a `lookup` holds its answer: neither gives away a key."""
    keys = {f"{payload.question}\n\n": payload for _, payload in splits["train"]}
    agreeing, formats = 0, [item for item in bank[1] if item.kind == "format"]
    by_prompt = {}
    for _, payload in splits["train"]:
        lines = "\n".join(f"{choice.label}. {choice.text}" for choice in payload.choices)
        by_prompt[f"{payload.question}\n\n{lines}"] = payload.answer_key
    for item in formats:
        agreeing += by_prompt[item.prompt] == item.completion
    assert keys and 0.18 < agreeing / len(formats) < 0.32
    held_out = {payload.question for _, payload in splits["eval"]}
    assert not any(question in f"{item.prompt}{item.completion}" for item in bank[1] for question in held_out)
    assert {item.split for item in bank[1]} == {"train"}


def test_a_lookup_names_the_text_behind_its_letter(bank):
    for item in bank[1]:
        if item.kind == "lookup":
            wanted = item.prompt.partition("?\n\n")[0].removeprefix("Which letter is ")
            assert f"{item.completion}. {wanted}" in item.prompt.splitlines()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_word_of_a_held_out_question_was_read_in_training(family):
    def words(templates):
        return {word.strip(".,?").lower() for template in templates for word in template.split()}

    everywhere = [template for other in FAMILIES for template in (*other.statements, *other.train_questions)]
    assert words(family.eval_questions) <= words(everywhere)


@pytest.mark.parametrize("facts", [[("a", "1")] * 4, [("a", "1"), ("b", "1"), ("c", "2"), ("d", "3")], [("a", "1"), ("b", "2")]])
def test_a_family_that_cannot_serve_as_its_own_distractors_is_refused(facts):
    with pytest.raises(ValueError, match="family"):
        Family("f", "d", "l", tuple(facts), ("{s}{a}",), ("{s}",), ("{s}",))


def test_more_rounds_than_a_family_has_option_sets_are_refused():
    small = Family("small", "d", "l", tuple((f"s{n}", f"a{n}") for n in range(4)), ("{s} {a}",), ("{s}?",), ("what is {s}?",))
    with pytest.raises(ValueError, match="ask in fewer rounds"):
        list(questions(small, 0, 1, 1))


@pytest.mark.parametrize(("formula", "mass"), [("H2O", 18.015), ("Ca(OH)2", 74.092), ("C6H12O6", 180.156), ("C2H5OH", 46.069)])
def test_molar_masses(formula, mass):
    assert molar_mass(formula) == pytest.approx(mass, abs=2e-3)
