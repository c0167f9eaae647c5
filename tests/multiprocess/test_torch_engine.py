"""torch's pipeline engine: its orders are ours, and with each the gradients are the uncut net's."""

import pytest
from processes import printed_by
from torch.distributed.pipelining import schedules

from mpcourse.schedules import make_schedule

# our name -> torch's class and the stages of a rank; None: torch's engine reads our order
KINDS = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zb-v": ("ScheduleZBVZeroBubble", 2),
    "zb-h1": (None, 1),
    "zb-h2": (None, 1),
}
# In torch 2.9 the engine for any order leaves the gradients of a split backward unscaled, and ZB-V
# does not run on it.
IS_NEW = issubclass(schedules.ScheduleZBVZeroBubble, schedules._PipelineScheduleRuntime)

PROGRAM = """
import sys
from pathlib import Path
import torch
from torch import distributed, nn
from torch.distributed.pipelining import schedules
from mpcourse.multiprocess.torch_stage import PipelineStage
from mpcourse.schedules import make_schedule
distributed.init_process_group("gloo")
rank, done = distributed.get_rank(), []

class Noted(PipelineStage):
    def forward_one_chunk(self, number, *args, **kwargs):
        done.append(f"{self.stage_index}F{number}")
        return super().forward_one_chunk(number, *args, **kwargs)

    def backward_one_chunk(self, number, loss=None, full_backward=True, **kwargs):
        done.append(f"{self.stage_index}{'B' if full_backward else 'I'}{number}")
        return super().backward_one_chunk(number, loss, full_backward, **kwargs)

    def backward_weight_one_chunk(self, number, *args, **kwargs):
        done.append(f"{self.stage_index}W{number}")
        return super().backward_weight_one_chunk(number, *args, **kwargs)

for word in sys.argv[1:]:
    name, kind, each = word.split(",")
    count, loss_fn = 2 * int(each), nn.functional.mse_loss
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]).double()
    rows, targets = torch.randn(2, 16, 6, dtype=torch.float64)
    loss_fn(net(rows), targets).backward()
    wanted = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    own = {1: [rank], 2: [rank, 3 - rank if name == "zb-v" else rank + 2]}[int(each)]
    stages = [Noted(net[index], index, count, torch.device("cpu")) for index in own]
    engine = getattr(schedules, "_PipelineScheduleRuntime" if kind == "None" else kind)
    takes_one = name in ("gpipe", "1f1b")
    schedule = engine(stages[0] if takes_one else stages, 4, loss_fn=loss_fn)
    if kind == "None":
        order = make_schedule(name, count, 2, 4)
        Path(f"{name}-{rank}.csv").write_text("\\n".join(",".join(map(str, row)) for row in order))
        schedule._load_csv(f"{name}-{rank}.csv")
    inputs = [rows] if rank == 0 else []
    schedule.step(*inputs, **({"target": targets} if any(s.is_last for s in stages) else {}))
    for parameter, gradient in zip(net.parameters(), wanted, strict=True):
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)
    assert sum(parameter.grad is not None for parameter in net.parameters()) == 2 * int(each)
    print(*done)
    done.clear()
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_torch_s_engine_does_what_ours_plans_and_has_the_uncut_gradients():
    names = [name for name in KINDS if IS_NEW or name in ("gpipe", "1f1b", "interleaved")]
    words = " ".join(f"{name},{kind},{each}" for name in names for kind, each in [KINDS[name]])
    lines = printed_by(PROGRAM, 2, words)
    assert len(lines) == 2 * len(names)
    for index, name in enumerate(names):
        orders = [lines[index].split(), lines[len(names) + index].split()]
        planned = make_schedule(name, 2 * KINDS[name][1], 2, 4)
        assert orders == [[str(action) for action in row] for row in planned], name
