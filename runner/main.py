"""The driver of a run.

    python -m runner.main                                        claims the attempt named by ASSAY_URL, ASSAY_ATTEMPT, ASSAY_CLAIM_CODE
    python -m runner.main --local CONFIG --bank FILE --out DIR   runs without a control plane; everything stays in DIR's spool

Exit status: 0 succeeded or stopped, 1 failed or lost a process, 3 the claim was refused, 4 fenced by another attempt, 5 the control plane is unreachable.
"""

import argparse
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from runner import preflight
from runner.assignment import Assignment, Bank, Refused, Resume, from_claim, local_grant, open_bank
from runner.contract.evaluation_config import EvaluationConfig
from runner.contract.parse import InvalidDocument, load_text, parse
from runner.gang import Gang, connect, head_answers
from runner.gang_errors import CLUSTER_GONE, ProcessLost, Unwanted, head_replaced
from runner.loop import Loop, Surroundings
from runner.reporting.control import ClaimRefused, Control, NoControl, Unreachable
from runner.reporting.emitter import Emitter
from runner.reporting.exit_record import exit_record, write_exit_record
from runner.reporting.heartbeat import Component, Heartbeat, StopRequest, Vitals
from runner.reporting.replay import CONNECTION, replay_earlier_attempts, write_connection
from runner.rollouts.dispatcher import WorkerLost

FAILED, CLAIM_REFUSED, FENCED, UNREACHABLE = 1, 3, 4, 5
# Ends that are no fault of the run: the control plane may try again from the last checkpoint.
LOST = (ProcessLost, WorkerLost, *CLUSTER_GONE)
CHECKOUT = Path(__file__).resolve().parent.parent
# What a SIGTERM leaves for finishing the step and saving; the control plane names its own grace in the heartbeat.
TERM_GRACE_SECONDS = 30.0
# The last evaluation is megabytes, and a busy control plane takes its time; what is undelivered then waits for a replay.
DELIVERY_SECONDS = 180.0


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.local:
        return _drive_local(arguments)
    try:
        return _drive_claimed(os.environ["ASSAY_URL"], os.environ["ASSAY_ATTEMPT"], os.environ["ASSAY_CLAIM_CODE"])
    except KeyError as missing:
        print(f"{missing.args[0]} is not set; a driver is started by the control plane, or by hand with --local", file=sys.stderr)
        return CLAIM_REFUSED
    except ClaimRefused as refused:
        print(refused, file=sys.stderr)
        return CLAIM_REFUSED
    except Unreachable as error:
        print(error, file=sys.stderr)
        return UNREACHABLE


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m runner.main", description=__doc__, formatter_class=raw)
    parser.add_argument("--local", type=Path, metavar="CONFIG", help="run document (.json, .toml or .yaml); no control plane")
    parser.add_argument("--bank", type=Path, help="task bank file")
    parser.add_argument("--out", type=Path, help="folder of the run")
    parser.add_argument("--resume", type=Path, help="checkpoint folder step_N to go on from")
    arguments = parser.parse_args(argv)
    if arguments.local and not (arguments.bank and arguments.out):
        parser.error("--local needs --bank and --out")
    return arguments


def _drive_claimed(url: str, attempt: str, code: str) -> int:
    control = Control(url, attempt)
    reply = control.claim(code)
    try:
        assignment = from_claim(reply, attempt)
    except Refused as refused:
        return _refuse_without_records(control, str(refused), refused)
    try:
        write_connection(assignment.folder, control.batches_url, control.token)
        expected = reply["bank"]["digest"]
        driver = Driver(assignment, control, lambda: (control.bank(expected, assignment.cache), expected))
    except OSError as error:
        told = f"the run's storage cannot be written on this node: {error}; free space or mend its permissions, then retry"
        return _refuse_without_records(control, told, error)
    replaying = threading.Event()
    earlier = (assignment.folder.parent, assignment.folder, replaying)
    threading.Thread(target=replay_earlier_attempts, args=earlier, name="replay", daemon=True).start()
    try:
        return driver.run()
    finally:
        replaying.set()


def _refuse_without_records(control: Control, told: str, error: Exception) -> int:
    """There is no folder that takes the exit record: say it over the network alone."""
    print(told, file=sys.stderr)
    control.exit(exit_record("failed", 0, told, error))
    control.flush()
    return FAILED


def _drive_local(arguments: argparse.Namespace) -> int:
    suffix = arguments.local.suffix.lstrip(".")
    try:
        config = parse(load_text(arguments.local.read_text(), "yaml" if suffix == "yml" else suffix))
    except InvalidDocument as invalid:
        print("\n".join(f"{arguments.local}: {error}" for error in invalid.errors), file=sys.stderr)
        return FAILED
    out = arguments.out.resolve()
    number = 1 + max((int(path.name) for path in out.glob("attempts/[0-9]*")), default=0)
    resume = arguments.resume and Resume("local", arguments.resume.resolve(), int(arguments.resume.name.removeprefix("step_")))
    cache = Path(os.environ.get("ASSAY_CACHE") or out / "cache").resolve()
    assignment = Assignment("local", f"local-{os.getpid()}", number, config, out, local_grant(config), cache, resume)
    data = arguments.bank.read_bytes()
    return Driver(assignment, NoControl(), lambda: (data, None)).run()


class Driver:
    """One attempt from claim to exit record. `fetch_bank` returns the bank's bytes and the digest they must have."""

    def __init__(self, assignment: Assignment, control: Control | NoControl, fetch_bank):
        self.assignment, self.control, self.fetch_bank = assignment, control, fetch_bank
        assignment.folder.mkdir(parents=True, exist_ok=True)
        self.journal = open(assignment.folder / "driver.log", "a", buffering=1)
        token = getattr(control, "token", "")
        url = getattr(control, "batches_url", None)
        self.emitter = Emitter(assignment.folder / "spool", "driver", url=url, token=token, journal=self.journal)
        self.vitals = Vitals(components={"driver": Component.own()})
        self.stop = StopRequest()
        self.heartbeat = Heartbeat(control, self.vitals, self.stop, self.emitter, self._fenced)
        self.gang: Gang | None = None
        self.head = ""

    def run(self) -> int:
        """Exit status. The exit record is on disk before anything else can go wrong."""
        error: BaseException | None = None
        try:
            outcome, reason = self._run(), self.stop.reason
        except KeyboardInterrupt:
            outcome, reason = "stopped", "interrupted"
        except Refused as refused:
            outcome, reason, error = "failed", str(refused), refused
        except Exception as failure:
            outcome, error = "lost" if isinstance(failure, LOST) or self._head_is_gone(failure) else "failed", failure
            reason = f"{type(failure).__name__}: {failure}"
        if error:
            self.emitter.log("error", "".join(traceback.format_exception(error)))
        self._leave(exit_record(outcome, self.vitals.step, reason if outcome != "succeeded" else "", error))
        return FAILED if error else 0

    def _head_is_gone(self, failure: Exception) -> bool:
        """Whatever is raised while the head of the cluster is away, or since another took its place, it is no fault of the run."""
        return head_replaced(failure) or bool(self.head) and not head_answers(self.head)

    def _run(self) -> str:
        self._listen_to_signals()
        config = self.assignment.config
        self._phase("preflight")
        preflight.check_storage(self.assignment)
        data, expected = self.fetch_bank()
        if isinstance(config, EvaluationConfig):
            return self._evaluate(data)
        bank: Bank = open_bank(data, config, expected, self.assignment.quarantined)
        preflight.check_stages(config, bank)
        self._phase("connecting")
        # Actors import this package from the folder that Ray takes over from the driver.
        os.chdir(CHECKOUT)
        self.head = connect(self._unanswered, f"assay-{self.assignment.attempt}")
        self._listen_to_signals()
        self._phase("starting processes")
        self.gang = Gang(self.assignment, bank, self.vitals.components, self.emitter.log, lambda: self.stop.asked)
        try:
            self._prepare(bank)
        except Unwanted:
            return "stopped"
        around = Surroundings(self.emitter, self.control, self.vitals, self.stop, self.heartbeat)
        return Loop(self.assignment, bank, self.gang, around).run()

    def _evaluate(self, data: bytes) -> str:
        """Nothing is trained: no gang, and no cluster to join. The containers are this node's."""
        from runner.evaluation.harness import Harness

        return Harness(self.assignment, data, self.control, self.emitter, self.vitals, self.stop).run()

    def _prepare(self, bank: Bank) -> None:
        """Models on both sides, and the checks that need their folder. Raises Refused, Unwanted."""
        if self.assignment.config.environment.type in ("harbor", "scienceworld"):
            self._phase("asking the nodes")
            preflight.check_engines(self.gang, bank, self.assignment.config)
        preflight.check_devices(self.gang, self.assignment.config)
        preflight.check_generation(self.gang, self.assignment)
        self._phase("preparing the model")
        folder = self.gang.resolve_model()
        preflight.check_room(self.assignment, folder)
        self.gang.every_worker("load_tokenizer", folder)
        preflight.check_lengths(self.gang, bank, self.assignment.config)
        self._phase("loading the model")
        self.gang.build()

    def _leave(self, record: dict) -> None:
        try:
            write_exit_record(self.assignment.folder, record)
        except OSError as error:  # a full disk: the control plane still hears it
            print(f"the exit record could not be written: {error}", file=sys.stderr)
        self._phase("leaving")
        if self.gang:
            self._end_gang()
        self.heartbeat.close()
        delivered = self.emitter.close(DELIVERY_SECONDS)
        self.control.exit(record)
        self.control.flush()
        if delivered and not any((self.assignment.folder / "spool").iterdir()):
            (self.assignment.folder / CONNECTION).unlink(missing_ok=True)
        self.journal.close()

    def _end_gang(self) -> None:
        try:
            self.gang.close()
        except Exception as error:  # a cluster that is gone must not keep the last word from being said
            self.emitter.log("warning", f"the gang could not be ended, Ray ends it with this process: {error}")

    def _listen_to_signals(self) -> None:
        # Ray puts its own SIGTERM handler in place while it connects, so this is done twice.
        grace = float(os.environ.get("ASSAY_STOP_GRACE_S", TERM_GRACE_SECONDS))
        signal.signal(signal.SIGTERM, lambda *_: self.stop.ask("terminated", grace))

    def _unanswered(self, message: str) -> None:
        """Called from a timer while Ray holds the main thread: the only way out is to leave."""
        error = TimeoutError(message)
        self._leave(exit_record("failed", 0, message, error))
        os._exit(FAILED)

    def _fenced(self, message: str) -> None:
        """Another attempt owns the run. Leave at once: Ray ends the actors of a driver that is gone."""
        self.emitter.log("error", f"fenced: {message}")
        self.emitter.close(timeout=3.0)
        os._exit(FENCED)

    def _phase(self, phase: str) -> None:
        self.vitals.phase = phase
        self.emitter.log("info", phase)


if __name__ == "__main__":
    sys.exit(main())
