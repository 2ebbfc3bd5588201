"""What the driver imports of learning brings no torch with it."""

import subprocess
import sys

LIGHT = ["runner.rollouts.types", "runner.rollouts.workflow", "runner.policies.base", "runner.policies.scripted", "runner.learning.health"]
LIGHT += ["runner.learning.advantages", "runner.learning.filters", "runner.learning.checkpoints", "runner.models.prompts"]


def test_the_driver_s_half_is_free_of_torch():
    code = f"import sys, importlib\nfor name in {LIGHT!r}: importlib.import_module(name)\n"
    code += "print(*sorted({'torch', 'transformers', 'peft', 'ray', 'django'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
