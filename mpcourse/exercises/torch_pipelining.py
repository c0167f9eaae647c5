"""Exercises of page `torch_pipelining`: a step of its engine, messages, a batch filled up."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import distributed, nn
from torch.distributed import distributed_c10d, pipelining
from torch.distributed.pipelining import ScheduleGPipe

from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    expected_and_got,
    leaving_alone,
    same,
    short,
)
from mpcourse.multiprocess.in_threads import torch_ranks_in_threads
from mpcourse.multiprocess.torch_stage import PipelineStage
from mpcourse.schedules.actions import makes, needs, number_actions
from mpcourse.schedules.named import make_schedule

# 1. The lines between start and end

ONLY_FORWARD = "no gradient: step calls schedule.step (with loss_fn, targets); no zero_grad after."
OWN = "Return this rank's own blocks; rank 0 has the first of the net."
NO_OPTIMIZER = "No optimizer in step: it leaves gradients, and the weights as they are."
LENGTH = "Call schedule.step once, keep scale_grads: torch divides already. The loss is a mean."
LOSS = "loss_fn takes (output, target) of a part, in this order: nn.functional.cross_entropy."
NO_LIST = "Hand schedule.step a list to fill, losses=losses, and return it on every rank."
ONE_LIST = "Make the list within step: the next step puts its own losses into a shared one."
PARTS = "Return the mean loss of each part, undivided: ScheduleGPipe(stage, microbatches)."
NO_PIPELINE = "Only rank 0 has the inputs here: what others work on comes through schedule.step."
STAGES = "PipelineStage(layers, rank, count, device): its own rank's layers; stage 0 is the first."
SLICE = "Weights are saved and joined by name: return a slice, net[a:b], which keeps the names."
COPIES = "The gradients are in other weights: return the blocks that the stage has, no copy."
OTHERS = "The others may have no memory yet: move this rank's blocks alone, net[a:b].to(device)."
ITSELF = "Return the blocks of net themselves, no copy: their weights may be loaded later, by net."
GIVEN_DEVICE = "Hand on `device` as it is given; on another machine it is a GPU."
TRAINING = "Leave the blocks in training mode: eval() turns dropout off."
STAYED = "On GPUs it would fail: move blocks, inputs and targets where you use them: .to(device)."
ALL_ROWS = "Hand over the batch whole, inputs and targets: torch cuts it. And give the loss all of "
ALL_ROWS += "(output, target)."
FILLED = "Return the list that schedule.step fills, as it is: one loss for each part."
INPUTS = "The first rank hands schedule.step the inputs alone, without a name, as one tensor."


def my_pipeline(rank, count, device, net, microbatches):
    """Each rank wraps its own layers. Those in the middle get everything from their neighbours."""
    size = len(net) // count
    layers = net[rank * size : (rank + 1) * size].to(device)
    stage = PipelineStage(layers, rank, count, device)
    schedule = ScheduleGPipe(stage, microbatches, loss_fn=nn.functional.cross_entropy)

    def step(inputs, targets):
        losses = []
        if rank == 0:
            schedule.step(inputs.to(device))
        elif rank == count - 1:
            schedule.step(target=targets.to(device), losses=losses)
        else:
            schedule.step()
        return losses

    return layers, step


def its_own_stage(stage, *given, **named):
    """As torch's stage; another number than its rank's ends in gloo, and with it the process."""
    torch_s_stage(stage, *given, **named)
    found = stage.stage_index, stage.num_stages, len([*stage.submod.parameters()])
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    wanted = rank, ranks, 8 // ranks  # the net of `small_work` has 8
    if found != wanted:
        words = "stage {} of {}, of {} weights"
        made = f"Rank {rank} made {words.format(*found)}; wanted is {words.format(*wanted)}."
        raise NotYet(made, STAGES)
    if torch.device(stage.device) != GIVEN:
        raise NotYet(f"Rank {rank} has a stage on {stage.device}, not on {GIVEN}.", GIVEN_DEVICE)


torch_s_stage, torch_s_to = pipelining.PipelineStage.__init__, torch.Tensor.to
GIVEN = torch.device("cpu", 0)  # no "cpu" that is typed equals it


def small_work(rank=0):
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
    for parameter in net.double().parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).double()
    inputs = torch.randn(16, 6, generator=generator).double()
    inputs += torch.nan if rank else 0  # shows in the gradients of who works without a pipeline
    return net, inputs, torch.randint(6, (16,), generator=generator)


def left_behind(attempt, count, microbatches):
    """On each rank, a thread: weights, gradients, losses, and what they do not show."""
    moved, staged = set(), set()

    def noted_to(tensor, *given, **named):  # modules move by it, too
        given = ["cpu" if type(each) is type(GIVEN) and each == GIVEN else each for each in given]
        found = torch_s_to(tensor, *given, **named)
        if not found.is_meta:  # torch's engine looks at shapes there
            moved.add(tensor.untyped_storage().data_ptr())
        return found

    def noted_stage(stage, *given, **named):
        its_own_stage(stage, *given, **named)
        staged.update(map(id, stage.submod.parameters()))

    def stays(tensors):
        return any(each.untyped_storage().data_ptr() not in moved for each in tensors)

    def on_rank(group):
        rank = group.rank()
        net, *batch = small_work(rank)
        match attempt(rank, count, GIVEN, net, microbatches):
            case [nn.Module() as layers, step] if callable(step):
                before = [each.detach().clone() for each in layers.parameters()]
                losses = step(*batch)
                if not same([*layers.parameters()], before):
                    raise NotYet(f"Rank {rank} has other weights after step.", NO_OPTIMIZER)
                grads = [None if p.grad is None else 1 * p.grad for p in layers.parameters()]
                if losses is step(*batch) and isinstance(losses, list):
                    raise NotYet("Two steps return the same list.", ONE_LIST)
            case _:
                raise NotYet("Return on every rank (layers, step), its blocks and the function.")
        if distributed_c10d._world.default_pg is not group:
            raise NotYet("The ranks have met before your lines. No init, no destroy.")
        mine, size, (inputs, targets) = [*layers.parameters()], len(net) // count, batch
        own = net[rank * size :][:size].state_dict()
        if same(mine, [*own.values()]) and [*own] != [*layers.state_dict()]:
            raise NotYet(f"Rank {rank} names its weights {', '.join(layers.state_dict())}", SLICE)
        used = {"inputs": [inputs] * (rank == 0), "targets": [targets] * (rank == count - 1)}
        stayed = [name for name, tensors in used.items() if stays(tensors)]
        if stays(mine) and stays(net[rank * size :][:size].parameters()):
            stayed.append("blocks")
        copied = bool(staged) and not staged.issuperset(map(id, mine))
        return mine, grads, losses, stayed, copied, unlike(layers, net, rank, size)

    def unlike(layers, net, rank, size):
        """What the gradients do not show: a copy, blocks that do not train, others that moved."""
        blocks = net[rank * size :][:size]
        if {*map(id, layers.parameters())} != {*map(id, blocks.parameters())}:
            return "returns a copy of its blocks", ITSELF
        if not all(each.training for each in layers.modules()):
            return "returns blocks in evaluation mode", TRAINING
        sparse = small_work()[0]
        for place, block in enumerate(sparse):
            block.to(GIVEN if place // size == rank else "meta")
        try:
            attempt(rank, count, GIVEN, sparse, microbatches)
        except NotImplementedError:  # out of meta, nothing can be copied
            return "moves blocks of other ranks", OTHERS
        return None

    @contextmanager
    def noting():
        stage = mock.patch.object(pipelining.PipelineStage, "__init__", noted_stage)
        with stage, mock.patch.object(torch.Tensor, "to", noted_to):
            yield

    return torch_ranks_in_threads(on_rank, count, timeout_s=2.0, turn_s=5.0, meanwhile=noting())


def as_uncut(outcome, count, microbatches):
    net, inputs, targets = small_work()
    nn.functional.cross_entropy(net(inputs), targets).backward()
    parts = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
    means = [nn.functional.cross_entropy(net(part), own).item() for part, own in parts]
    size = len(net) // count
    blocks = [list(net[rank * size :][:size].parameters()) for rank in range(count)]
    for rank, (right, (found, grads, *_, copied, _)) in enumerate(
        zip(blocks, outcome, strict=True)
    ):
        if [each.shape for each in found] != [each.shape for each in right]:
            raise NotYet(f"Rank {rank} has {len(found)} weights, not {len(right)}.", OWN)
        if any(each is None for each in grads):
            raise NotYet(f"Rank {rank}: {COPIES if copied else ONLY_FORWARD}")
        if not same(found, right):
            raise NotYet(f"Rank {rank} has other weights than the net there.", OWN)
    for rank, (right, (_, grads, losses, *_)) in enumerate(zip(blocks, outcome, strict=True)):
        if not same(grads, [each.grad for each in right]):
            ratio = grads[0].norm() / right[0].grad.norm()
            about = NO_PIPELINE if ratio.isnan() else LENGTH
            raise NotYet(f"Rank {rank}: gradients {ratio:.4f} times as long as uncut.", about)
        wanted = means if rank == count - 1 else []
        if not same(losses, wanted):
            about = PARTS if wanted and short(losses) not in ("None", "[]") else NO_LIST
            about = FILLED if isinstance(losses, torch.Tensor) and losses.dim() else about
            raise NotYet(f"Rank {rank} has losses {short(losses)}, not {short(wanted)}.", about)
    for rank, (*_, stayed, _, unlike) in enumerate(outcome):
        if stayed:
            raise NotYet(f"Rank {rank} does not move its {' and '.join(stayed)}.", STAYED)
        if unlike:
            raise NotYet(f"Rank {rank} {unlike[0]}.", unlike[1])


check_pipeline = Exercise(
    my_pipeline,
    read_again='"What would you run in production?"',
    cases=[(2, 4), (4, 8)],
    given="{} ranks and {} micro-batches",
    play=left_behind,
    look=as_uncut,
    hint="schedule.step takes inputs on the first rank, target= and losses= on the last alone.",
    correct="On 2 and on 4 ranks: gradients as uncut, and a loss for each micro-batch on the last.",
    errors={
        "of an earlier call": "An answer before this one never ends. Restart the kernel, run the "
        "cells above again, and then your lines without that loop.",
        "had not returned": "A rank never ends: is there a loop that waits in your lines? Its "
        "thread goes on: take the loop out, and restart the kernel.",
        "missing 2 .*'inputs' and": "Return step itself, without brackets: the check calls it.",
        "5 were given": "The check calls my_pipeline(rank, count, device, net, microbatches).",
        "SystemExit": "No exit in your lines: other ranks wait for this one.",
        "NameError": "This name is not defined: look how it is written where you make it.",
        "stage_index|Stage index|out of range|argument: 'device'|group size": STAGES,
        # 'comms': what torch 2.11's destroy_process_group misses in a thread's own world
        "destroy_process_group|group twice|not been initialized|'comms'": "No init, no destroy.",
        '(list|tuple)\' object has no att|required "forward"': "A stage wraps one module: a slice.",
        r"Expecting \d+ losses but got 0": ONLY_FORWARD,
        "to match target batch_size": ALL_ROWS,
        "takes 2 positional|has type list|argument '(?!target)|batch_size|arg_mbs": INPUTS,
        "log_softmax|size of tensor|(?<!step\\(\\) )takes 1 positional": LOSS,
        "ZeroDivision": PARTS,
        "Boolean value": "loss_fn is a function: nn.functional.cross_entropy.",
        "second time": "schedule.step goes backward: no backward after it.",
        "target|input args": "The last rank takes the targets, by name: "
        "schedule.step(target=targets, losses=losses).",
        "gloo|by peer|Timed out": "It waited for a message that never came: every rank calls "
        "schedule.step, and has loss_fn in its schedule.",
    },
    wrong={
        OWN: "return layers => return net",
        ONLY_FORWARD: [
            ", loss_fn=nn.functional.cross_entropy => ",
            ".step( => .eval(",
            "stage = => return layers, lambda x, y: []; stage =",
        ],
        NO_OPTIMIZER: "return losses => torch.optim.SGD(layers.parameters(), 1).step(); "
        "return losses",
        "has other weights than": [
            "rank * size : (rank + 1) * size => rank::count",
            "rank * size : (rank + 1) * size => rank : rank + size",
        ],
        LENGTH: "cross_entropy) => cross_entropy, scale_grads=False)",
        LOSS: [
            "=nn.functional.cross_entropy => =lambda a, b: nn.functional.cross_entropy(b, a)",
            "=nn.functional.cross_entropy => =lambda a, b: (a - b).square().mean()",
        ],
        SLICE: "[rank * size : (rank + 1) * size].to(device) => [rank * size : (rank + 1) * size]"
        ".to(device); layers = nn.Sequential(*layers)",
        COPIES: "return layers, => from copy import deepcopy; return deepcopy(layers),",
        OTHERS: (
            "[rank * size : (rank + 1) * size].to(device) => [rank * size : (rank + 1) * size]",
            "size = => net.to(device); size =",
        ),
        ITSELF: "stage = => from copy import deepcopy; layers = deepcopy(layers); stage =",
        GIVEN_DEVICE: ['size = => device = "cpu"; size =', 'count, device) => count, "cpu")'],
        TRAINING: "return layers, => return layers.eval(),",
        "Return step itself": "layers, step => layers, step()",
        "Rank 0 does not move its blocks": "[rank * size : (rank + 1) * size].to(device) => "
        "[rank * size : (rank + 1) * size]",
        "Rank 0 does not move its inputs": "inputs.to(device) => inputs",
        "Rank 1 does not move its targets": "targets.to(device) => targets",
        ALL_ROWS: "target=targets => target=targets[:8]",
        FILLED: "return losses => return torch.stack(losses) if losses else losses",
        NO_LIST: [", losses=losses => ", "return losses => return [0.0]", "return losses => pass"],
        PARTS: [
            "stage, microbatches => stage, 4",
            "return losses => return losses and [sum(losses)]",
            "return losses => return losses and sum(losses) / len(losses)",
            "return losses => return sum(losses) / len(losses)",
            "=nn.functional.cross_entropy) => =lambda *part: nn.functional.cross_entropy(*part) "
            "/ microbatches, scale_grads=False)",
        ],
        ONE_LIST: "def step(inputs, targets):\n        losses = [] => losses = []\n\n    "
        "def step(inputs, targets):",
        NO_PIPELINE: "losses = [] => nn.functional.cross_entropy(net(inputs), targets).backward(); "
        "return []",
        "loss_fn is a function": "=nn.functional.cross_entropy => =nn.CrossEntropyLoss",
        STAGES: [
            "layers, rank => layers, rank + 1",
            "PipelineStage(layers => PipelineStage(net",
            "rank, count, device) => rank, count)",
        ],
        " of 4, of 2 weights.": "len(net) // count => 2",  # of the first rank that tells
        "The check calls my_pipeline(": lambda rank: rank,
        "This name is not defined": "schedule.step() => schedul.step()",
        "wraps one module": ["net[rank => [*net][rank", "net[rank => nn.ModuleList(net)[rank"],
        INPUTS: [
            "(inputs.to(device)) => (inputs, targets)",
            "(inputs.to => (i=inputs.to",
            "schedule.step(inputs.to(device)) => [schedule.step(i) for i in inputs.split(2)]",
        ],
        "the targets, by name": ["target= => ", "target= => targets="],
        "no backward after it": "return losses => [each.backward() for each in losses]; return",
        "a message that never came": "schedule.step() => pass",
        "Return on every rank": "return layers, step => return layers",
        "No init, no destroy": [
            "return losses => distributed.destroy_process_group(); return losses",
            "size = => distributed.init_process_group(); size =",
        ],
    },
    also_right=[
        "ScheduleGPipe => torch.distributed.pipelining.Schedule1F1B",
        "inputs.to(device) => inputs.to(next(layers.parameters()).device)",
        "count, device) => count, torch.device(device))",
    ],
)

# 3. Messages in an order

BLOCKED = "Each waits for the other: write both ends of a message in the same moment."
NAMES = "A word begins with the stage that does it: 0SEND_F1 goes to 1RECV_F1, 1SEND_B1 to "
NAMES += "0RECV_B1; what an I made goes as B."
NAMES += " A rank may hold several stages: read from the rows which. It sends itself nothing."
EARLY = "Its next action waits: so wait with it, and do no later one. Keep the order of each row."
STOPS = "It stops too early: note makes(action) as done, and go on until all rows are empty."


def handed_on(action, num_stages):
    """The stage that the result goes to, and F or B; None at the ends of the net and for W."""
    stage, kind, _ = action
    to, way = (stage + 1, "F") if kind == "F" else (stage - 1, "B")
    return (to, way) if kind != "W" and 0 <= to < num_stages else None


def my_messages(schedule, num_stages):
    """Both ends of a message are written at once. So all ranks share one order of messages."""
    rank_of = {action.stage_index: r for r, row in enumerate(schedule) for action in row}
    rows, left, done = [[] for _ in schedule], [list(row) for row in schedule], set()
    while any(left):
        for rank, row in enumerate(left):
            if not row or not done.issuperset(needs(row[0], num_stages)):
                continue
            action = row.pop(0)
            done.add(makes(action))
            rows[rank].append(str(action))
            if goes := handed_on(action, num_stages):
                to, way = goes
                if rank_of[to] != rank:
                    text = f"_{way}{action.microbatch_index}"
                    rows[rank].append(f"{action.stage_index}SEND{text}")
                    rows[rank_of[to]].append(f"{to}RECV{text}")
    return rows


def partner(word):
    """The other end of a message: 1RECV_F0 for 0SEND_F0. None for an action."""
    if not (found := re.fullmatch(r"(\d+)(SEND|RECV)_([FB])(\d+)", word)):
        return None
    stage, end, way, number = found.groups()
    step = 1 if (end == "SEND") == (way == "F") else -1
    return f"{int(stage) + step}{'RECV' if end == 'SEND' else 'SEND'}_{way}{number}"


def run_rows(rows, schedule, stages):
    """Both ends of a message have to be next on their ranks, or nobody goes on."""
    ranks, rows = len(schedule), [*rows] if isinstance(rows, Iterator) else rows
    if not isinstance(rows, list | tuple) or len(rows) != ranks or str in map(type, rows):
        raise NotYet(f"Return a list of words for each of {ranks} ranks; got {short(rows)}")
    rows = [[*row] for row in rows]
    if not all(isinstance(word, str) for row in rows for word in row):
        raise NotYet("A word is a text: str(action).")
    named = [word for row in rows for word in row if re.search("SEND|RECV", word)]
    if strange := [word for word in named if not partner(word)]:
        raise NotYet(f"{strange[0]} is no message.", NAMES)
    for rank, (row, right) in enumerate(zip(rows, my_messages(schedule, stages), strict=True)):
        own, actions = ([w for w in words if not partner(w)] for words in (row, right))
        if own != actions:
            about = "Keep each rank's own actions, all of them, in their order, by str(action)."
            about = EARLY if sorted(own) == sorted(actions) else about
            names = "" if about is EARLY else NAMES
            about = STOPS if own == actions[: len(own)] else about
            raise NotYet(f"Rank {rank} does {short(own)}, not {short(actions)}.", about, names)
        for word in Counter(right) - Counter(row):
            raise NotYet(f"Rank {rank}: {word} is missing.", NAMES)
        for word in Counter(row) - Counter(right):
            raise NotYet(f"Rank {rank}: {word} is one too many, or belongs elsewhere.", NAMES)
        for word in filter(partner, row):
            own = re.sub("[A-Z]{4}_", "", word)
            own = own if own in row else own.replace("B", "I")
            if (row.index(word) < row.index(own)) != ("RECV" in word):
                order = "A receive stands before its action, a send behind it."
                first = "Write an action when all its needs are done." if "RECV" in word else ""
                raise NotYet(f"Rank {rank}: {word} and {own} change places.", order, first)
    while any(rows):
        heads = {row[0]: rank for rank, row in enumerate(rows) if row}
        ready = [word for word in heads if partner(word) in {None, *heads}]
        if not ready:
            lines = ", ".join(f"rank {rank} waits in {word}" for word, rank in heads.items())
            raise NotYet(f"It blocks: {lines}.", BLOCKED)
        rows = [row[1:] if row and row[0] in ready else row for row in rows]


CASES = [("gpipe", 2, 2, 1), ("1f1b", 2, 2, 3), ("1f1b", 3, 3, 5)]
CASES += [("interleaved", 6, 3, 6), ("zb-v", 4, 2, 4)]
SCHEDULES = [(make_schedule(name, *sizes), sizes[0]) for name, *sizes in CASES]
# rank 0 has a ready action, 0F1, behind its next, 0B0, which waits
SCHEDULES.insert(1, ([number_actions([(stage, "FBFB")]) for stage in range(2)], 2))


def each_row(change):
    return lambda schedule, n: [change(row) for row in my_messages(schedule, n)]


check_messages = Exercise(
    my_messages,
    read_again='"In which order do messages go?" and the text of the exercise',
    cases=SCHEDULES,
    given=lambda schedule, stages: (
        f"{stages} stages on {len(schedule)} ranks; rank 0 does {' '.join(map(str, schedule[0]))}"
    ),
    play=leaving_alone("The given schedule has changed: work on copies of its rows, list(row)."),
    look=run_rows,
    hint="When a rank has done an action, write its send, and the receive into the other's row.",
    correct="All messages are there, and in {count} schedules nobody blocks.",
    errors={
        "had not returned": "No action became ready any more. Do you remove what you wrote "
        "(row.pop(0))? Do you note makes(action) as done, and no text?",
        "list index out of range": "An empty row? Or a stage taken for a rank, which may hold two?",
    },
    wrong={
        BLOCKED: each_row(lambda row: sorted(row, key=lambda word: "RECV" not in word)),
        "1RECV_F0 is missing": "{to}RECV => 0RECV",
        "what an I made goes as B": [
            "_{way} => _{action.kind}",
            "SEND{text} => SEND_{action.kind}{action.microbatch_index}",
        ],
        "in their order, by str(action)": "str(action) => repr(action)",
        "Its next action waits: so wait with it": (
            "not row or not done.issuperset(needs(row[0], num_stages)): => "
            "not (ready := [a for a in row if done.issuperset(needs(a, num_stages))]):",
            "row.pop(0) => row.pop(row.index(ready[0]))",
        ),
        "A word is a text": "str(action) => action",
        "taken for a rank": "rows[rank_of[to]].append => rows[to].append",
        "change places": "rows[rank].append(f => rows[rank].insert(-1, f",
        "when all its needs are done": " or not done.issuperset(needs(row[0], num_stages)): => :",
        "is one too many, or belongs elsewhere": "rank_of[to] != rank => True",
        STOPS: ("makes(action) => action", "while any(left): => for _ in range(99):"),
        "No action became ready": "makes(action) => str(makes(action))",
        "several stages: read from the rows": "rank_of[to] => (to % len(rows))",
        "The given schedule has changed": "[list(row) for row in schedule] => schedule",
    },
    also_right=[each_row(tuple), each_row(iter), lambda *given: iter(my_messages(*given))],
)

# 2. The loss of a batch with rows that do not count


def my_padded(inputs, targets, rows):
    """`new_zeros` keeps the type. A part's loss is its sum over what counts in the batch."""
    counted, more = (targets != -100).sum(), rows - len(inputs)
    inputs = torch.cat([inputs, inputs.new_zeros(more, *inputs.shape[1:])])
    targets = torch.cat([targets, targets.new_full((more,), -100)])

    def loss_fn(output, target):
        return nn.functional.cross_entropy(output, target, reduction="sum") / counted

    return inputs, targets, loss_fn


def batch(dtype, parts, rows, *shape, ignored=0):
    inputs = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=dtype).reshape(shape) / 9
    targets = torch.arange(shape[0]) % 3
    return inputs, targets.index_fill(0, torch.arange(ignored), -100), rows, parts


THREE = "Return three: inputs, targets, and a function of a part's output and target."
SWAPPED = "Inputs come before targets, and targets stay whole numbers."
ORDER = "loss_fn takes a part's output first, then its target: (output, target)."
CALLED = "Return the function itself, not its value: torch calls it with output and target."
NUMBER = "The loss of a part is a tensor of one number, its sum: return it, and no .item()."
EMPTY = "A part of padding alone has the mean 0/0; its sum is 0."
KINDS = "new_full keeps the type of the targets."
ZERO = "0 is a class, whose row the loss counts; -100 is left out."
COUNT = "Divide by the targets that count: padding does not, nor what was -100 before."
NO_COPIES = "Add zeros: neither copies nor ones."
MINUS = "-1 is not left out: ignore_index is -100."


def in_parts(attempt, inputs, targets, rows, parts):
    """The batch, padded, and the loss of its parts, added up, with its gradient."""
    found = attempt(inputs, targets, rows)
    if not isinstance(found, tuple | list):
        return None if found is None else {"got": short(found)}
    if len(found) != 3 or not callable(found[2]):
        raise NotYet(f"got {short([*found])}", THREE)
    longer, labels, loss_fn = found
    if labels.is_floating_point():
        raise NotYet("got targets that are no whole numbers", SWAPPED)
    if (added := labels[len(targets) :][:1].tolist()) in ([0], [-1]):
        raise NotYet(f"got the target {added[0]} for a new row", MINUS if added[0] else ZERO)
    if len(longer) == len(labels) != rows:
        raise NotYet(f"{rows} rows are asked, and got {len(longer)}", "Add rows - len(inputs).")
    if same(longer[: len(inputs)], inputs) and longer[len(inputs) :].any():
        raise NotYet("got new rows that are no zeros", NO_COPIES)
    outputs = torch.outer(torch.arange(1.0, rows + 1), torch.tensor([0.2, -0.1, 0.3]))
    outputs.requires_grad_()
    if [len(each) for each in found[:2]] == [rows] * 2:
        pairs = zip(outputs.chunk(parts), labels.chunk(parts), strict=True)
        losses = [loss_fn(*pair) for pair in pairs]
        for part, each in enumerate(losses):
            if not isinstance(each, torch.Tensor) or each.numel() != 1:
                raise NotYet(f"the loss of part {part} is {short(each)}", NUMBER)
        loss = torch.stack(losses).sum()
        if loss.isnan():
            raise NotYet("the loss of the batch is nan", EMPTY)
        if loss.isinf():
            raise NotYet("the loss of the batch is inf", COUNT)
        gradient = torch.autograd.grad(loss, outputs)[0]
    else:
        loss = gradient = None
    return {"inputs": longer, "targets": labels, "loss": loss, "gradient": gradient}


def as_padded(outcome, expected):
    kinds = [[each[name].dtype for name in ("inputs", "targets")] for each in (outcome, expected)]
    return same(outcome, expected) and kinds[0] == kinds[1]


def what_differs(outcome, expected):
    """The first of inputs, targets, loss and gradient that is not right."""
    for name, right in expected.items() if outcome and set(outcome) == set(expected) else ():
        found = outcome[name]
        if not same(found, right):
            return [f"{name}: {line}" for line in expected_and_got(found, right)]
        if found.dtype != right.dtype and name in ("inputs", "targets"):
            return [f"{name}: expected {right.dtype}, got {found.dtype}"]
    return expected_and_got(outcome, expected)


BATCHES = [(torch.float64, 2, 4, 3, 2), (torch.float64, 4, 16, 10, 3), (torch.float32, 4, 8, 8, 3)]
BATCHES += [(torch.float32, 4, 12, 1, 2), (torch.half, 3, 6, 5, 1, 2, 2)]

check_padded = Exercise(
    my_padded,
    read_again='"What does it do with ten rows in four parts?"',
    cases=[batch(*each) for each in BATCHES] + [batch(torch.float64, 2, 8, 6, 2, ignored=2)],
    given=lambda inputs, targets, rows, parts: (
        f"{inputs.dtype} of shape {[*inputs.shape]}, targets {targets.tolist()}; "
        f"{rows} rows are asked, then cut into {parts}"
    ),
    play=leaving_alone(
        "The given batch has changed: return new tensors (torch.cat makes them).", in_parts
    ),
    same=as_padded,
    compared=what_differs,
    hint="Add rows of zeros, each with the target -100, behind all others. The losses of the parts "
    "have to add up to the mean over the targets of the batch that are not -100.",
    errors={
        "'Long'": ORDER,
        "Target 2 is out of bounds": CALLED,
        "Target -100 is out of bounds": "cross_entropy leaves -100 out by itself: no ignore_index.",
        "does not require grad": "The loss stays a tensor: .item() and .detach() drop its "
        "gradient.",
        "target dtype|scalar type|not implemented|'list'": KINDS,
        "dimension|size": "The rows to add have the shape (more, *inputs.shape[1:]).",
    },
    wrong={
        ZERO: ["-100) => 0)", "((more,), -100) => ((more,), 0)", "targets != -100 => targets > 0"],
        MINUS: "((more,), -100) => ((more,), -1)",
        "The loss stays a tensor": [
            'reduction="sum") => reduction="sum").item()',
            'reduction="sum") => reduction="sum").detach()',
        ],
        " rows are asked, and got ": [
            "rows - len(inputs) => -len(inputs) % 4",
            "rows - len(inputs) => rows",
            "rows - len(inputs) => 16 - len(inputs)",
            "rows - len(inputs) => rows - len(inputs) + 1",
            "rows - len(inputs) => 0",
        ],
        "Add as many targets as rows.": [
            "targets = torch.cat( => torch.cat(",
            "inputs = torch.cat( => torch.cat(",
        ],
        THREE: [", loss_fn => ", "loss_fn\n => 0\n"],
        ORDER: "(output, target): => (target, output):",
        CALLED: "loss_fn\n => loss_fn(inputs, targets)\n",
        SWAPPED: ["return inputs, targets => return targets, inputs", "-100)]) => -100)]).half()"],
        NUMBER: [
            "return nn => nn",
            '"sum" => "none"',
            'reduction="sum") / counted => reduction="sum").item() / counted.item()',
            "return nn => return 0.0 if (target == -100).all() else nn",
        ],
        EMPTY: ', reduction="sum") => ) * (target != -100).sum()',
        "Add no columns.": "torch.cat([inputs, inputs.new_zeros(more, *inputs.shape[1:])]) => "
        "nn.functional.pad(inputs, (0, more))",
        "new_zeros keeps the type.": "inputs.new_zeros => torch.zeros",
        "The inputs keep their type: no .float().": "inputs.shape[1:])]) => "
        "inputs.shape[1:])]).float()",
        "no ignore_index": 'reduction="sum") => reduction="sum", ignore_index=0)',
        "A full batch is cut, too: the means of {3} parts add up to {3} times the mean.": (
            "    inputs = torch.cat( =>     if more == 0:\n        "
            "return inputs, targets, nn.functional.cross_entropy\n    inputs = torch.cat("
        ),
        KINDS: "-100)]) => -100)]).int()",
        "Add the rows behind those of the batch.": "])\n => ][::-1])\n",
        NO_COPIES: ["new_zeros( => new_ones(", "shape[1:])]) => shape[1:]) + inputs[-1:]])"],
        "That is a mean over a part: one real row weighs as much as four, and a part of padding "
        "alone gives nan.": [
            '(output, target, reduction="sum") / counted => (output, target)',
            '(output, target, reduction="sum") / counted => (output, target) / 4',
            '(output, target, reduction="sum") / counted => (output, target) * len(target) / rows',
            '(output, target, reduction="sum") / counted => (output, target) * len(target) '
            "/ (rows - more)",
            "/ counted => / (target != -100).sum()",
        ],
        "That is a mean over a part: one real row weighs as much as four. Divide by what counts in "
        "the batch.": "/ counted => / (target != -100).sum().clamp(min=1)",
        COUNT: [
            "targets != -100 => targets == -100",
            "/ counted => / rows",
            "/ counted => / (rows - more)",
            "/ counted => / len(targets)",
            "/ counted => / len(target)",
        ],
        "The losses of the parts are added up: their number has no part in it.": [
            "/ counted => / counted / 4",
            "/ counted => / counted * 4",
        ],
        "A sum grows with the batch: divide by the targets that count in it.": "/ counted => ",
    },
    also_right=[
        "inputs.new_zeros(more, *inputs.shape[1:]) => 0 * inputs[:1].repeat_interleave(more, 0)"
    ],
)
