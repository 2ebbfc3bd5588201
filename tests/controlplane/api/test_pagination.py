"""Keyset cursors: every row once, whatever comes or goes meanwhile."""

import base64
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.accounts.models import Project
from controlplane.api.pagination import Paging
from controlplane.api.problems import Problem


def walk(rows, limit, *order):
    seen, cursor = [], None
    while True:
        page = Paging(cursor=cursor, limit=limit).page(rows, *order)
        assert len(page["items"]) <= limit
        seen += page["items"]
        cursor = page["next"]
        if cursor is None:
            return seen


@given(
    names=st.lists(st.sampled_from("abc"), max_size=12),
    limit=st.integers(1, 5),
    order=st.sampled_from([("name", "id"), ("-name", "id"), ("name", "-id"), ("-name", "-id"), ("-created_at", "-id"), ("id",)]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_together_are_the_ordered_list(team, names, limit, order):
    Project.objects.all().delete()
    Project.objects.bulk_create([Project(team=team, slug=f"p{index}", name=name) for index, name in enumerate(names)])
    assert walk(Project.objects.all(), limit, *order) == list(Project.objects.order_by(*order))


def test_rows_that_come_and_go_shift_nothing(team):
    Project.objects.all().delete()
    made = [Project.objects.create(team=team, slug=f"p{index}", name="x") for index in range(6)]
    first = Paging(limit=2).page(Project.objects.all(), "-id")
    Project.objects.create(team=team, slug="new", name="x")
    made[4].delete()
    second = Paging(limit=2, cursor=first["next"]).page(Project.objects.all(), "-id")
    assert [project.slug for project in first["items"] + second["items"]] == ["p5", "p4", "p3", "p2"]


def _cursor(*values):
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        *(
            "x",
            "!!",
            "é",
            "bnVsbA",
            "W10",
            "0" * 500,
            _cursor(),
            _cursor("-id"),
            _cursor("-id", "two"),
            _cursor("-id", None),
            _cursor("-id", 1, 2),
        ),
        *(_cursor("id", 1), _cursor("-id", {"a": 1}), _cursor("-id", [1]), base64.urlsafe_b64encode(b"[" * 90_000).decode()),
    ],
)
def test_a_malformed_cursor_is_a_400_that_names_it(team, cursor):
    with pytest.raises(Problem) as caught:
        Paging.model_construct(cursor=cursor, limit=5).page(Project.objects.all(), "-id")
    assert caught.value.status == 400
    assert caught.value.errors[0].pointer == "/cursor"


def test_a_cursor_far_out_of_range_finds_nothing(team):
    assert Paging(cursor=_cursor("id", 10**30), limit=5).page(Project.objects.all(), "id") == {"items": [], "next": None}
