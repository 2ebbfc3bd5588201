"""The launch form in three pure pieces: schema → field tree, POST → document, errors → field. No Django, no HTML."""

from controlplane.runs.forms.diff import Change, diff, differing_keys, flatten
from controlplane.runs.forms.document import Posted, add_item, move_item, read_post, remove_item
from controlplane.runs.forms.errors import place
from controlplane.runs.forms.fields import Choice, Field, Form, Section, build_form, subtree
from controlplane.runs.forms.schema import ABSENT

__all__ = [
    *("ABSENT", "Change", "Choice", "Field", "Form", "Posted", "Section"),
    *("add_item", "build_form", "diff", "differing_keys", "flatten", "move_item", "place", "read_post", "remove_item", "subtree"),
]
