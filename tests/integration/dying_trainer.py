"""The trainer, killed by SIGKILL at an exact instant: `python -m tests.integration.dying_trainer MOMENT --config FILE`.

The instant is an audit event of the interpreter, raised just before a file is opened or renamed, so the program itself
is not touched. Moments:

    step-N        the N-th step of this process is done and nothing of it is written
    writing-N     the checkpoint of step N is half written
    written-N     the checkpoint of step N is complete and not visible yet
    visible-N     the checkpoint of step N is visible and not committed
"""

from __future__ import annotations

import os
import signal
import sys

from services.trainer.__main__ import main


class Killer:
    """Counts what is written and ends the process at the moment."""

    def __init__(self, moment: str) -> None:
        self.kind, _, step = moment.partition("-")
        self.step = int(step)
        self.lines = 0
        self.renamed = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in {"open", "os.rename"}:
            return
        if self._is_now(event, str(arguments[0]), mode=str(arguments[1])):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_now(self, event: str, path: str, *, mode: str) -> bool:
        folder = f".staging-step-{self.step:08d}-epoch-"
        if self.kind == "step":
            if event == "open" and path.endswith("metrics.jsonl") and mode == "a":
                self.lines += 1
            return self.lines == self.step
        if self.kind == "writing":
            return event == "open" and folder in path and path.endswith("state.json")
        if event == "os.rename" and folder in path:
            self.renamed = True
            return self.kind == "written"
        return self.renamed and self.kind == "visible" and path.endswith("checkpoints")


if __name__ == "__main__":
    sys.addaudithook(Killer(sys.argv.pop(1)))
    sys.exit(main())
