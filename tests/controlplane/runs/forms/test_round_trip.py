"""document → form → browser → document gives the same config, byte for byte."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.runs.forms import build_form, read_post
from controlplane.runs.forms.schema import root
from runner.contract.canonical import canonical_bytes
from runner.contract.parse import parse
from runner.contract.presets import PRESETS
from tests.controlplane.runs.forms.browser import documents, post

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def through_the_form(document):
    posted = read_post(post(build_form(document)))
    assert posted.errors == ()
    return posted.document


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_the_form(name):
    document = PRESETS[name].start()
    assert canonical_bytes(parse(through_the_form(document))) == canonical_bytes(parse(document))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_with_every_default_written_out(name):
    config = parse(PRESETS[name].start())
    assert canonical_bytes(parse(through_the_form(config.model_dump(mode="json")))) == canonical_bytes(config)


@given(documents())
@SLOW
def test_any_valid_document_survives_the_form(document):
    assert canonical_bytes(parse(through_the_form(document))) == canonical_bytes(parse(document))


@given(documents())
@SLOW
def test_a_rebuilt_form_posts_what_was_typed(document):
    typed = post(build_form(document))
    posted = read_post(typed)
    again = post(build_form(posted.document, posted.errors, posted.typed))
    assert again == typed


@given(
    st.dictionaries(
        st.from_regex(r"(/(stages|model|0|1|type|source|name|optimizer|learning_rate|tags|x)){1,4}(#null)?", fullmatch=True),
        st.lists(st.text(max_size=5), max_size=2),
        max_size=12,
    )
)
@SLOW
def test_no_post_whatever_breaks_the_form(values):
    posted = read_post(values)
    config, errors = posted.check()
    form = build_form(posted.document, errors, posted.typed)
    assert config is not None or form.error_count > 0


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["model", "source", "type", "stages", "optimizer", "grpo"]), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
@SLOW
def test_a_malformed_document_still_gives_a_form(value):
    build_form({"stages": value, "model": value, "name": value, "environment": value, "tags": value})


def test_no_list_needs_an_explicit_empty_one():
    """Blank means the default: a list whose default has entries must not allow an empty one, which no post could say."""
    for node in _nodes(root()):
        if node.kind == "list" and node.default:
            assert node.limits.get("minItems", 0) >= 1, node


def _nodes(node):
    yield node
    for below in [*node.properties.values(), *node.variants.values(), *([node.item] if node.item else [])]:
        yield from _nodes(below)
