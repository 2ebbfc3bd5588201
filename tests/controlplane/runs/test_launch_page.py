"""The launch page: shows every field, refuses at the field, launches once."""

import html
import uuid

import pytest
from django.urls import reverse

from controlplane.runs.models import Run
from runner.contract.presets import PRESETS
from tests.controlplane.factories import make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


def entries(**changes) -> dict:
    return {"token": uuid.uuid4().hex, "/name": "from the form", "/stages/0/type": "grpo", **changes}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_the_form_and_says_where_its_values_come_from(browser, preset):
    page = browser.get(reverse("launch"), {"preset": preset})
    assert page.status_code == 200
    text = html.unescape(page.content.decode())
    assert PRESETS[preset].document["name"] in text
    assert all(source in text for pointer, source in PRESETS[preset].sources.items() if pointer.count("/") > 2)


def test_the_page_opens_on_the_sample_run(browser):
    assert PRESETS["sample"].document["name"] in html.unescape(browser.get(reverse("launch")).content.decode())
    assert 'name="/name" value=""' in browser.get(reverse("launch"), {"preset": "blank"}).content.decode()


def test_an_unknown_preset_is_not_found(browser):
    assert browser.get(reverse("launch"), {"preset": "nothing"}).status_code == 404


def test_a_wrong_field_comes_back_as_typed_with_its_error(browser):
    answer = browser.post(reverse("launch"), entries(**{"/stages/0/group_size": "seven", "/stages/0/batch_size": "64"}))
    page = answer.content.decode()
    assert answer.status_code == 422 and 'value="seven"' in page and "Nothing was launched" in page
    assert not Run.objects.exists()


def test_a_missing_bank_is_refused_before_anything_is_queued(browser):
    answer = browser.post(reverse("launch"), entries(**{"/environment/bank": "nowhere"}))
    assert answer.status_code == 422 and "no such bank" in answer.content.decode()
    assert not Run.objects.exists()


def test_two_tabs_submitting_once_make_one_run(browser, bank):
    form = entries()
    first, second = browser.post(reverse("launch"), form), browser.post(reverse("launch"), form)
    assert first.status_code == second.status_code == 302
    assert first.url == second.url
    assert Run.objects.count() == 1


def test_a_used_form_with_other_values_asks_again(browser, bank):
    form = entries()
    browser.post(reverse("launch"), form)
    answer = browser.post(reverse("launch"), {**form, "/name": "another"})
    assert answer.status_code == 409 and Run.objects.count() == 1


def test_the_rail_says_cost_and_problems(browser, bank):
    good = browser.post(reverse("launch-check"), entries()).content.decode()
    assert "Ready to launch" in good and " steps, " in good
    bad = browser.post(reverse("launch-check"), entries(**{"/stages/0/group_size": "7"})).content.decode()
    assert "1 to correct" in bad and "/stages/0/group_size" in bad


def test_what_is_not_filled_in_yet_is_not_called_wrong(browser, bank):
    page = browser.post(reverse("launch-check"), entries(**{"/name": ""})).content.decode()
    assert "1 to fill in" in page and "to correct" not in page and '"missing": true' in page


def test_a_default_that_is_refused_is_called_wrong(browser):
    """The bank is left to its default, which this team does not have."""
    page = browser.post(reverse("launch-check"), entries(**{"/environment/type": "quiz", "/environment/bank": ""})).content.decode()
    assert "1 to correct" in page and "no such bank" in page and '"missing": false' in page


def test_changing_a_variant_keeps_values_of_the_same_name(browser):
    values = entries(**{"/stages/0/type": "sft", "/stages/0/steps": "77"})
    page = browser.post(reverse("launch-union") + "?pointer=/stages/0", values).content.decode()
    assert 'value="77"' in page and "Batch size" in page


def test_stages_are_added_and_removed(browser):
    added = browser.post(reverse("launch-stages") + "?act=add&type=sft", entries()).content.decode()
    assert "Stage 1" in added
    removed = browser.post(reverse("launch-stages") + "?act=remove&index=0", entries()).content.decode()
    assert "Stage 0" not in removed


def test_a_form_that_comes_back_is_as_it_was_filled_in_with_its_stages(browser):
    values = entries(**{"/stages/0/group_size": "seven", "/stages/1/type": "sft", "/stages/1/steps": "77"})
    answer = browser.post(reverse("launch-fields"), values)
    page = answer.content.decode()
    assert answer.status_code == 200 and 'value="seven"' in page and "Stage 1" in page and 'value="77"' in page and "<form" not in page
    assert "no-store" in browser.get(reverse("launch"))["Cache-Control"]


@pytest.mark.parametrize(
    ("route", "query", "said"),
    [
        ("launch-stages", "act=add&type=nothing", "/stages has no type 'nothing'; choose one of gigpo, grpo, sft"),
        ("launch-stages", "act=add", "/stages has no type ''"),
        ("launch-stages", "act=remove&index=7", "/stages/7 is none of the 1 in the form"),
        ("launch-stages", "act=up&index=²", "index: '²' is no whole number"),
        ("launch-stages", "act=eat", "act must be"),
        ("launch-union", "pointer=/stages/²", "none of those in the form"),
        ("launch-union", "pointer=/stages/" + "9" * 5000, "none of those in the form"),
        ("launch-union", "pointer=/stages/7", "none of those in the form"),
        ("launch-union", "pointer=/name", "has no type"),
        ("launch-union", "pointer=/%00", "null character"),
    ],
)
def test_a_stage_or_kind_that_there_is_not_is_refused_with_the_reason(browser, route, query, said):
    answer = browser.post(f"{reverse(route)}?{query}", entries(), headers={"HX-Request": "true"})
    assert answer.status_code == 400 and said in answer.content.decode()


@pytest.mark.parametrize("door", ["yaml", "cli", "python"])
def test_the_same_document_in_other_words(browser, door):
    assert "from the form" in browser.post(reverse("launch-text") + f"?door={door}", entries()).content.decode()


def test_a_clone_shows_what_differs_from_its_parent(browser, team, bank):
    parent = make_run(team)
    page = browser.get(reverse("launch"), {"clone": parent.pk})
    assert f'value="{parent.pk}"' in page.content.decode()
    rail = browser.post(reverse("launch-check"), entries(parent=str(parent.pk))).content.decode()
    assert "/name" in rail


def test_a_default_that_the_form_spells_out_is_no_difference(browser, launch):
    parent = launch()
    same = {f"/{name}": value for name, value in (("name", "first"), ("model/max_length", "128"), ("sampling/max_new_tokens", "4"))}
    same |= {"/stages/0/type": "grpo", "/stages/0/steps": "10", "/stages/0/batch_size": "16", "/stages/0/group_size": "4"}
    spelled = {"/stages/0/advantage": "mean", "/model/dtype": "float32", "/evaluation/type": "held_out"}
    rail = browser.post(reverse("launch-check"), entries(parent=str(parent.pk), **{**same, **spelled})).content.decode()
    assert "No field differs yet" in rail
    changed = browser.post(reverse("launch-check"), entries(parent=str(parent.pk), **{**same, **spelled, "/seed": "3"})).content.decode()
    assert "<code>/seed</code> <del>0</del> → <ins>3</ins>" in changed and changed.count("<ins>") == 1


def test_another_team_cannot_clone(client, outsider, team):
    client.force_login(outsider)
    assert client.get(reverse("launch"), {"clone": make_run(team).pk}).status_code == 404


def test_a_viewer_cannot_launch(client, viewer):
    client.force_login(viewer)
    assert client.get(reverse("launch")).status_code == 403
