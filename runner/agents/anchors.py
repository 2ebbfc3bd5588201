"""The two agents that need no model: `oracle` applies the task's own solution, `nop` does nothing.

Together they tell whether a verifier can be believed: the oracle must be worth everything, nop nothing.
"""

from runner.contract.termination import Termination
from runner.sandbox.agent import Budget
from runner.sandbox.base import Container
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.task import SandboxTask

SOLUTION = "/solution"
LOGS = "/logs/agent"
OUTPUT_CAP = 1 << 20
SETUP_SECONDS = 60.0


class Nop:
    """Leaves everything as it is."""

    name, version = "nop", "1"

    async def setup(self, container: Container, task: SandboxTask) -> None:
        """Nothing to prepare."""

    async def run(self, container: Container, task: SandboxTask, budget: Budget) -> Termination:
        return Termination.FINISHED


class Oracle:
    """Runs solution/solve.sh as the agent would. Its output is kept in the agent's log, a status other than 0 in exit-code.txt."""

    name, version = "oracle", "1"

    async def setup(self, container: Container, task: SandboxTask) -> None:
        """Only now does the solution enter a container. Raises SandboxFailure when the task has none."""
        folder = task.folder / "solution"
        if not (folder / "solve.sh").is_file():
            raise SandboxFailure(
                Reason.AGENT_SETUP_FAILED, f"{task.name}: no solution/solve.sh, so the oracle cannot run; add one to the task"
            )
        await container.put(SOLUTION, folder)

    async def run(self, container: Container, task: SandboxTask, budget: Budget) -> Termination:
        script = f'exec sh "${{ASSAY_SOLUTION:-{SOLUTION}}}/solve.sh" 2>&1'
        done = await container.exec(["sh", "-c", script], timeout=budget.seconds_left, output_cap=OUTPUT_CAP)
        kept = {"oracle.txt": done.stdout + done.stderr}
        if done.exit_code != 0:
            kept["exit-code.txt"] = f"{done.exit_code}\n".encode()
        await container.put(LOGS, kept)
        return Termination.AGENT_TIMEOUT if done.timed_out else Termination.FINISHED


ANCHORS = {agent.name: agent for agent in (Oracle, Nop)}
