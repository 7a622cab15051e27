"""Are answers from NVMe those of a recompute?

Owns the law: all greedy answers equal, or at least as many as when nothing but HBM is between. The control is needed
where arithmetic is not bit-stable: bf16 on a GPU may end a near-tie either way when a batch is cut otherwise, with no
tier at all. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixtier.gate.lengths import Samples
from radixtier.gate.result import Check, Verdict

NAME = "answers from NVMe"


def compare(sets: Sequence[Samples]) -> tuple[Check, dict[str, Any]]:
    """Compare what each prompt was answered when it was computed, when NVMe had it, and when HBM had it."""
    compared = equal = control = control_equal = 0
    for samples in sets:
        for name in samples.tokens:
            computed = {answer.output for answer in samples.answers.get((name, "recompute"), ())}
            computed |= {samples.computed[name].output} if name in samples.computed else set()
            cold = [answer.output for answer in samples.answers.get((name, "nvme"), ())]
            hits = [answer.output for answer in samples.control.get(name, ())]
            if not computed:
                continue
            if cold:
                compared, equal = compared + 1, equal + all(output in computed for output in cold)
            if hits:
                control, control_equal = control + 1, control_equal + all(output in computed for output in hits)
    figures = {"compared": compared, "equal": equal, "control": control, "control_equal": control_equal}
    return _judge(compared, equal, control, control_equal), figures


def _judge(compared: int, equal: int, control: int, control_equal: int) -> Check:
    if not compared:
        return Check(NAME, Verdict.FAIL, "none could be compared: no prompt came from NVMe and was computed as well")
    reason = f"{equal} of {compared} equal those of a recompute"
    if equal == compared:
        return Check(NAME, Verdict.PASS, reason)
    reason += f"; of hits in HBM {control_equal} of {control}"
    if control and control_equal < control and equal * control >= control_equal * compared:
        return Check(NAME, Verdict.PASS, f"{reason}: this server's answers vary without the tier, and no less")
    return Check(NAME, Verdict.FAIL, reason, "This must not happen: report it with the store's header and the flags")
