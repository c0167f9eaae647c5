"""Exercises of page `torch_pipelining`: a step of its engine, messages, a batch filled up."""

import re
from collections import Counter
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
from torch import Tensor, distributed, nn
from torch.distributed import HashStore, PrefixStore, distributed_c10d, pipelining
from torch.distributed.pipelining import ScheduleGPipe
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

from mpcourse.devices.locks import fork_safe_lock
from mpcourse.devices.workers import Worker, collect
from mpcourse.exercises.exercise import Exercise, NotYet, same, short
from mpcourse.multiprocess.in_threads import gloo_group
from mpcourse.multiprocess.torch_stage import PipelineStage
from mpcourse.schedules.actions import Action, makes, needs
from mpcourse.schedules.named import make_schedule

# 1. The lines between start and end

LOST = "gloo|by peer|Timed out"  # what a rank says when another has gone, or never sends
NO_PAIR = "Return two things on every rank: (layers, losses)."
NOT_CALLED = (
    "It waited for a message that never came: every rank calls step, and has loss_fn in its "
    "schedule. Without it, and in eval, a rank goes forward alone."
)
ONE_NUMBER = "loss_fn gives one number, the mean over its part."
ONLY_FORWARD = (
    "no gradient: step goes backward with loss_fn and targets; call no zero_grad after it."
)
TWICE = "the step was done more than once: it takes the whole batch, call it once."
OTHERS = "works on blocks of another rank: each has its own alone, rank 0 the first of the net."
NOT_UNCUT = "the gradients are not those of the uncut net. Which targets and layers has it got?"
AFTER = "the weights have changed: they are looked at as step leaves them, without an optimizer."
TIMES = "a factor of the number of micro-batches too long: keep scale_grads, and a mean as loss."
SHORT = "a factor of the number of micro-batches too short: torch divides by it, not your loss."
CUT = "Hand step the whole batch, once, and the schedule the number of micro-batches."
NO_LIST = "Hand step the list to fill, losses=losses, and return it as it is."
WANTS_FIRST = "The first rank hands step the inputs alone, as one tensor: step cuts them."
JOINED = "The ranks have met before your lines, and part after them: no init, no destroy."
NO_BACKWARD = "step has gone backward already: the losses are there to be looked at."
NO_CALL = "loss_fn is the function itself: write no brackets behind it."
AN_OBJECT = "nn.CrossEntropyLoss is a class: nn.CrossEntropyLoss() is a loss."
WANTS_LAST = "The last rank takes the targets, by name: step(target=targets, losses=losses)."

THREE = "PipelineStage(layers, rank, count, device)."
FROM_0 = "Stages are counted from 0: rank of count."
ROWS = 16

_ranks: list[Worker] = []
_one_world = fork_safe_lock()


def my_pipeline(rank, count, device, net, inputs, targets, microbatches):
    """Each rank wraps its own layers. Those in the middle get everything from their neighbours."""
    size = len(net) // count
    layers = net[rank * size : (rank + 1) * size].to(device)
    stage = PipelineStage(layers, rank, count, device)
    schedule = ScheduleGPipe(stage, microbatches, loss_fn=nn.functional.cross_entropy)
    losses = []
    if rank == 0:
        schedule.step(inputs.to(device))
    elif rank == count - 1:
        schedule.step(target=targets.to(device), losses=losses)
    else:
        schedule.step()
    return layers, losses


@contextmanager
def a_world_for_each_thread():
    """A process has one default group of ranks; meanwhile each thread has its own."""
    with _one_world:  # an attempt that was stopped may still wait for a message
        before, distributed_c10d._world = distributed_c10d._world, ThreadLocalWorld()
        try:
            yield
        finally:
            distributed_c10d._world = before


def its_own_stage(stage, *given, **named):
    """As torch's stage; another number than its rank's ends in gloo, and with it the process."""
    torch_s_stage(stage, *given, **named)
    wanted = distributed.get_rank(), distributed.get_world_size()
    if (stage.stage_index, stage.num_stages) != wanted:
        raise NotYet(
            f"Rank {wanted[0]} made stage {stage.stage_index} of {stage.num_stages}, "
            f"not {wanted[0]} of {wanted[1]}. {THREE} {FROM_0}"
        )


torch_s_stage = pipelining.PipelineStage.__init__


def on_ranks(attempt, count, *work):
    """Results by rank: torch's own engine and messages, in a thread for each rank."""
    store = HashStore()

    def on_rank(rank):
        world, group = distributed_c10d._world, gloo_group(PrefixStore("", store), rank, count, 2.0)
        world.pg_map[group], world.pg_names[group] = ("gloo", None), "ranks of the check"
        world.pg_group_ranks[group], world.default_pg = {r: r for r in range(count)}, group
        try:
            net, *batch = small_work()
            seen = []
            for number, block in enumerate(net):
                block.register_forward_pre_hook(partial(note, seen, number * count // len(net)))
            result = attempt(rank, count, torch.device("cpu"), net, *batch, *work)
            for own, rows in seen:
                if rows != ROWS // work[0]:
                    raise NotYet(f"Rank {rank} works on {rows} rows, not {ROWS // work[0]}. {CUT}")
                if own != rank:
                    raise NotYet(f"Rank {rank} {OTHERS}")
            return result, None, group
        except Exception as error:
            return None, error, group  # a group that is deleted cuts off the others
        finally:
            world.default_pg = None
            for known in (world.pg_map, world.pg_names, world.pg_group_ranks):
                known.pop(group)

    while len(_ranks) < count:
        _ranks.append(Worker(f"rank {len(_ranks)} of the check"))
    checked = mock.patch.object(pipelining.PipelineStage, "__init__", its_own_stage)
    with a_world_for_each_thread(), checked:
        results = collect([_ranks[rank].submit(on_rank, rank) for rank in range(count)])
    errors = [error for _, error, _ in results if error is not None]
    own = [error for error in errors if not re.search(LOST, str(error))]
    if errors and not own:
        raise NotYet(NOT_CALLED)
    for error in own:
        raise error
    return [result for result, _, _ in results]


def note(seen, rank, block, inputs):
    seen.append((rank, len(inputs[0])))


def small_work():
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
    for parameter in net.double().parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).double()
    inputs = torch.randn(ROWS, 6, generator=generator).double()
    return net, inputs, torch.randint(6, (ROWS,), generator=generator)


def left_behind(attempt, count, microbatches):
    """On each rank the weights, their gradients and the losses."""
    found = []
    for rank, result in enumerate(on_ranks(attempt, count, microbatches)):
        if result is ...:
            return ...
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise NotYet(NO_PAIR, f"Rank {rank} got {short(result)}.")
        layers, losses = result
        if not isinstance(layers, nn.Module) or not isinstance(losses, list | tuple):
            raise NotYet(NO_PAIR, "layers is this rank's part of the net, losses a list.")
        weights = [each.detach() for each in layers.parameters()]
        losses = [each.detach() if isinstance(each, Tensor) else each for each in losses]
        found.append((weights, [each.grad for each in layers.parameters()], losses))
    return found


def as_uncut(outcome, count, microbatches):
    net, inputs, targets = small_work()
    nn.functional.cross_entropy(net(inputs), targets).backward()
    parts = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
    means = [nn.functional.cross_entropy(net(part), own).item() for part, own in parts]
    size = len(net) // count
    for rank, (found, grads, losses) in zip(range(count), outcome, strict=True):
        right = list(net[rank * size :][:size].parameters())
        if [each.shape for each in found] != [each.shape for each in right]:
            raise NotYet(f"Rank {rank} has {len(found)} weights, not {len(right)}. Return its own.")
        if any(each is None for each in grads):
            raise NotYet(f"Rank {rank}: {ONLY_FORWARD}")
        ratio = grads[0].norm() / right[0].grad.norm()
        if not same(found, right):
            raise NotYet(f"Rank {rank}: {AFTER}")
        if not same(grads, [each.grad for each in right]):
            # a second step adds a gradient, then torch divides all by the number of parts
            known = {1 + 1 / microbatches: TWICE, microbatches: TIMES, 1 / microbatches: SHORT}
            near = [words for factor, words in known.items() if abs(ratio - factor) < 1e-6]
            words = (near or [NOT_UNCUT])[0]
            raise NotYet(f"Rank {rank}: {words}")
        wanted = means if rank == count - 1 else []
        if not same(losses, wanted):
            raise NotYet(f"Rank {rank} has losses {short(losses)}, not {short(wanted)}. {NO_LIST}")


NO_LOSS_FN = ", loss_fn=nn.functional.cross_entropy => "

check_pipeline = Exercise(
    my_pipeline,
    read_again='"What would you run in production?"',
    cases=[(2, 4), (4, 8), (2, 2)],
    given="{} ranks and {} micro-batches",
    play=left_behind,
    look=as_uncut,
    hint=f"{THREE} First: step(inputs). Last: step(target=…, losses=losses). Between: step().",
    correct="On 2 and on 4 ranks: gradients as uncut, and a loss for each micro-batch on the last.",
    errors={
        "stage_index|Stage index|out of range": FROM_0,
        r"Expecting \d+ losses but got 0": ONLY_FORWARD,
        "takes 2 positional arguments|has type list": WANTS_FIRST,
        "process group twice|ProcessGroup": JOINED,
        "backward through the graph a second": NO_BACKWARD,
        r"cross_entropy\(\) missing": NO_CALL,
        "Boolean value of Tensor": AN_OBJECT,
        r"only for scalar|Stage output: Tensor\(torch.Size\(\[\d+\]\)": ONE_NUMBER,
        "target": WANTS_LAST,
    },
    wrong={
        "Return its own": "return layers => return net",
        OTHERS: [
            "net[rank * size : (rank + 1) * size] => net",
            "net[rank * size : (rank + 1) * size] => net[2 * (rank % 2) :][:2]",
        ],
        ONLY_FORWARD: [
            NO_LOSS_FN,
            (NO_LOSS_FN, "target=targets.to(device), losses=losses => "),
            ".step( => .eval(",
            "return layers => layers.zero_grad(); return layers",
        ],
        TIMES: "cross_entropy) => cross_entropy, scale_grads=False)",
        SHORT: ("=nn.func => =lambda *of: nn.func", "entropy) => entropy(*of) / microbatches)"),
        TWICE: lambda *given: [my_pipeline(*given), my_pipeline(*given)][-1],
        CUT: [
            lambda rank, count, device, net, inputs, *_: (net(inputs), []),
            "stage, microbatches => stage, 2",
            "stage, microbatches => stage, len(inputs) // microbatches",
        ],
        AFTER: "return layers => torch.optim.SGD(layers.parameters(), 0.1).step(); return layers",
        NOT_UNCUT: [
            "functional.cross_entropy => CrossEntropyLoss(reduction='sum', label_smoothing=0.1)",
            "targets.to(device) => targets.flip(0)",
        ],
        NO_LIST: ", losses=losses => ",
        "return it as it is": "return layers, losses => return layers, [x / 4 for x in losses]",
        "Rank 0 made stage 0 of 4, not 0 of 2.": "rank, count, device) => rank, 4, device)",
        THREE: "layers, rank => layers, 0",
        FROM_0: ["layers, rank => layers, rank + 1", "layers, rank => layers, rank + 2"],
        WANTS_FIRST: [
            "step(inputs.to(device)) => step(inputs, targets)",
            "step(inputs.to(device)) => step(*inputs.chunk(microbatches))",
            "step(inputs.to(device)) => step(list(inputs.chunk(microbatches)))",
        ],
        JOINED: [
            "size = => distributed.init_process_group('gloo'); size =",
            "return layers => distributed.destroy_process_group(); return layers",
        ],
        NO_BACKWARD: "return layers => [each.backward() for each in losses]; return layers",
        NO_CALL: "functional.cross_entropy => functional.cross_entropy()",
        AN_OBJECT: "functional.cross_entropy => CrossEntropyLoss",
        NOT_CALLED: [
            "schedule.step(target=targets.to(device), losses=losses) => pass",
            "schedule.step() => pass",
            "schedule.step(target => schedule.eval(target",
            "entropy) => entropy if rank == count - 1 else None)",
        ],
        ONE_NUMBER: "functional.cross_entropy => CrossEntropyLoss(reduction='none')",
        WANTS_LAST: [
            "target=targets.to(device), losses=losses => ",
            "target=targets.to(device), losses=losses => targets",
        ],
        NO_PAIR: ["return layers, losses => ", "return layers, losses => return layers"],
    },
    also_right=[
        "ScheduleGPipe => torch.distributed.pipelining.Schedule1F1B",
        (
            "inputs.to(device) => inputs.to(device), target=targets",
            "schedule.step() => schedule.step(target=targets)",
        ),
    ],
)

# 2. Messages in an order

BLOCKED = "Each waits for the other: write both ends of a message in the same moment."
NAMES = "By its stage: 0SEND_F1 goes to 1RECV_F1, 1SEND_B1 to 0RECV_B1; what an I made goes as B."
AS_GIVEN = "An action stays as it is: str(action)."
HOLDER = "Is its row empty? Or is a stage taken for a rank? A rank may hold several stages."
ONE_TEXT = "A row is one text here; a list of words is asked for."
EMPTIED = "The given schedule has changed: work on copies of its rows, list(row)."
OWN_ORDER = "Keep each rank's own actions, all of them, in their order."


def handed_on(action, num_stages):
    """The stage that the result goes to, and F or B; None at the ends of the net and for W."""
    stage, kind, _ = action
    to, way = (stage + 1, "F") if kind == "F" else (stage - 1, "B")
    return (to, way) if kind != "W" and 0 <= to < num_stages else None


def my_messages(schedule, num_stages):
    """Go round the ranks; whoever has what its next action needs does it, and passes it on.

    Both ends of a message are written in the same moment, so all ranks agree on one order of all
    messages. In that order each meets its partner, and nobody blocks. A receive may then stand
    long before the action that needs it.
    """
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
    found = re.fullmatch(r"(\d+)(SEND|RECV)_([FB])(\d+)", word)
    if not found:
        return None
    stage, end, way, number = found.groups()
    step = 1 if (end == "SEND") == (way == "F") else -1
    return f"{int(stage) + step}{'RECV' if end == 'SEND' else 'SEND'}_{way}{number}"


def handed_in(attempt, name, stages, ranks, microbatches):
    schedule = make_schedule(name, stages, ranks, microbatches)
    handed = [list(row) for row in schedule]
    rows = attempt(handed, stages)
    if handed != schedule and rows is not ...:
        raise NotYet(EMPTIED)
    return rows


def run_rows(rows, name, stages, ranks, microbatches):
    """Run the rows: a message passes when both its ends are next, an action when it has all."""
    schedule = make_schedule(name, stages, ranks, microbatches)
    if not isinstance(rows, list | tuple) or len(rows) != ranks:
        raise NotYet(f"Return one list of texts per rank, {ranks} in all; got {short(rows)}")
    if any(isinstance(row, str) for row in rows):
        raise NotYet(ONE_TEXT)
    rows = [[str(word) for word in row] for row in rows]
    wanted = {str(action): action for row in schedule for action in row}
    for rank, (row, actions) in enumerate(zip(rows, schedule, strict=True)):
        own, right = [w for w in row if not partner(w)], [str(each) for each in actions]
        if own != right:
            for word in (each for each in own if each not in wanted):
                about = AS_GIVEN if re.match(r"Action|\d+\w\d+$", word) else NAMES
                raise NotYet(f"{word} on rank {rank}? {about}")
            raise NotYet(f"Rank {rank} does {short(own)}, not {short(right)}.", OWN_ORDER)
    messages = [Counter(filter(partner, row)) for row in my_messages(schedule, stages)]
    for rank, (row, right) in enumerate(zip(rows, messages, strict=True)):
        found = Counter(filter(partner, row))
        for word in right - found:
            raise NotYet(f"Rank {rank}: {word} is missing.", NAMES)
        for word in found - right:
            raise NotYet(f"Rank {rank}: {word} is one too many, or belongs elsewhere.", NAMES)
    passes(rows, wanted, stages)


def passes(rows, actions, stages):
    left, here = [list(row) for row in rows], [set() for _ in rows]
    while any(left):
        heads = {row[0] for row in left if row}
        ready = {word for word in heads if partner(word) is None or partner(word) in heads}
        if not ready:
            lines = [f"rank {r} waits in {row[0]}" for r, row in enumerate(left) if row]
            raise NotYet("It blocks: " + ", ".join(lines) + ".", BLOCKED)
        for rank, row in enumerate(left):
            if not row or row[0] not in ready:
                continue
            word, has = row.pop(0), here[rank]
            stage, kind, number = re.fullmatch(r"(\d+)\D*?([FBIW])(\d+)", word).groups()
            result = makes(Action(int(stage), kind, int(number)))
            if "RECV" in word:
                has.add(Action(int(stage) + (1 if kind == "B" else -1), kind, int(number)))
                continue
            missing = [] if "SEND" in word else set(needs(actions[word], stages)) - has
            if missing:
                line = f"Rank {rank} does {word} before it has {short([*map(str, missing)])}."
                raise NotYet(line, "Its receive comes first.")
            if "SEND" in word and result not in has:
                raise NotYet(
                    f"Rank {rank} reaches {word} before {result}: there is nothing to send."
                )
            has.add(result)


def beside(row):
    """Each receive just before the action that needs it."""
    moved = [word for word in row if "RECV" not in word]
    for word in row:
        if "RECV" in word:
            action = word.replace("RECV_", "")
            [at] = [i for i, each in enumerate(moved) if each.replace("I", "B") == action]
            moved.insert(at, word)
    return moved


def each_row(change):
    return lambda schedule, n: [change(row) for row in my_messages(schedule, n)]


def by_time(schedule, num_stages):
    """All actions and messages in one list, in an order that works; each rank takes its own."""
    ranks = {action.stage_index: r for r, row in enumerate(schedule) for action in row}
    together, left, done = [], [list(row) for row in schedule], set()
    while any(left):
        row = next(r for r in reversed(left) if r and done.issuperset(needs(r[0], num_stages)))
        action = row.pop(0)
        done.add(makes(action))
        own = ranks[action.stage_index]
        together.append((own, str(action)))
        goes = handed_on(action, num_stages)
        if goes and ranks[goes[0]] != own:
            text = f"_{goes[1]}{action.microbatch_index}"
            together.append((own, f"{action.stage_index}SEND{text}"))
            together.append((ranks[goes[0]], f"{goes[0]}RECV{text}"))
    return [tuple(word for rank, word in together if rank == own) for own in range(len(schedule))]


check_messages = Exercise(
    my_messages,
    read_again='"In which order do messages go?" and the text of the exercise',
    cases=[
        ("gpipe", 2, 2, 1),
        ("1f1b", 2, 2, 3),
        ("1f1b", 3, 3, 5),
        ("interleaved", 6, 3, 6),
        ("zb-v", 4, 2, 4),
    ],
    given="{}, {} stages on {} ranks, {} micro-batch(es)",
    play=handed_in,
    look=run_rows,
    hint="When a rank has done an action, write its send, and the receive into the other's row.",
    correct="All messages are there, and in {count} schedules nobody blocks.",
    errors={
        "had not returned": "No action was ready any more. B waits for what makes(0I0) gives: "
        "note makes(action) as done.",
        "list index out of range": HOLDER,
    },
    wrong={
        BLOCKED: [
            each_row(beside),
            each_row(lambda row: sorted(row, key=lambda word: "RECV" not in word)),
        ],
        "0SEND_F0 is missing": "rank_of[to] != rank => False",
        "0RECV_B0 is missing": 'rows[rank_of[to]].append(f"{to}RECV{text}") => pass',
        "Rank 1: 1RECV_F0 is missing": "{to}RECV => 0RECV",
        ONE_TEXT: each_row(",".join),
        OWN_ORDER: ["return rows => return rows[::-1]", "while any(left) => while all(left)"],
        "0F0SEND on rank 0? ": "SEND{text} => F{text[-1]}SEND",
        "what an I made goes as B": "_{way} => _{action.kind}",
        AS_GIVEN: "str(action) => repr(action)",
        HOLDER: ["rows[rank_of[to]].append => rows[to].append", "not row or => "],
        "before it has": each_row(lambda row: [*row[1:2], row[0], *row[2:]]),
        "there is nothing to send": "rows[rank].append(f => rows[rank].insert(-1, f",
        "1SEND_F0 is one too many, or belongs elsewhere": "rank_of[to] != rank => True",
        "Return one list of texts per rank, 2 in all": [
            "return rows => ",
            "return rows => return sum(rows, [])",
        ],
        EMPTIED: "[list(row) for row in schedule] => schedule",
    },
    also_right=[by_time],
)

# 3. Rows that do not count

NOT_FINITE = "NaN in a row that does not count makes gradients NaN all the same: add zeros."
NOT_ZEROS = "The added rows hold other numbers than 0: rows of zeros are asked for."
IN_PLACE = "The caller's batch has changed: return new tensors (torch.cat makes them)."


def my_padded(inputs, targets, microbatches):
    """What is missing is minus the number of rows, modulo the number of micro-batches.

    `new_zeros` and `new_full` keep type and device. When nothing is missing, `cat` gets an empty
    tensor, and no case of its own is needed.
    """
    more = -len(inputs) % microbatches
    rows = inputs.new_zeros(more, *inputs.shape[1:])
    return torch.cat([inputs, rows]), torch.cat([targets, targets.new_full((more,), -100)])


def padded(attempt, shape, parts, dtype):
    """What is returned, with its types."""
    inputs = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=dtype).reshape(shape)
    targets = torch.arange(shape[0])
    given = inputs.clone(), targets.clone()
    result = attempt(inputs, targets, parts)
    if not same((inputs, targets), given):
        raise NotYet(IN_PLACE)
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    if not is_pair or not all(isinstance(each, Tensor) and each.ndim for each in result):
        return result
    rows, targets = result
    added = rows[shape[0] :]
    if not added.isfinite().all():
        raise NotYet(NOT_FINITE)
    if len(rows) == shape[0] + -shape[0] % parts and same(rows[: shape[0]], inputs) and added.any():
        raise NotYet(NOT_ZEROS)
    rows = torch.cat([rows[: shape[0]], torch.zeros_like(added)])
    return rows, targets, str(rows.dtype), str(targets.dtype)


def row_by_row(inputs, targets, parts):
    while len(inputs) % parts:
        inputs = torch.cat([inputs, 0 * inputs[-1:]])
    return [inputs, torch.tensor([*targets, *[-100] * (len(inputs) - len(targets))])]


check_padded = Exercise(
    my_padded,
    read_again='"What does it do with ten rows in four parts?"',
    cases=[
        ((3, 2), 2, torch.float64),
        ((10, 3), 4, torch.float64),
        ((8, 3), 4, torch.float32),
        ((1, 2), 4, torch.float32),
        ((5, 1, 2, 2), 8, torch.bfloat16),
    ],
    given=lambda shape, parts, dtype: (
        f"inputs of shape {shape} and {dtype}, targets {[*range(shape[0])]}, {parts} micro-batches"
    ),
    play=padded,
    hint="Missing are -rows % microbatches rows. All stand behind the batch.",
    wrong={
        "A target from 0 on is a class: the loss counts such a row. -100 is left out.": (
            "-100 => 0"
        ),
        "-1 is not left out: ignore_index is -100.": "-100 => -1",
        "Nothing is missing here: add no row.": "-len(inputs) => microbatches - len(inputs)",
        "That many are over, not missing.": "-len(inputs) => len(inputs)",
        "Nothing was added; the parts are still of two sizes.": lambda i, t, parts: (i, t),
        "Rows were left out: add some instead.": (
            lambda i, t, parts: (i[: len(i) // parts * parts], t[: len(t) // parts * parts])
        ),
        "Inputs and targets have to be equally long.": (
            "torch.cat([targets, targets.new_full((more,), -100)]) => targets"
        ),
        "Targets are classes: they stay whole numbers (int64).": [
            "-100)]) => -100)]).float()",
            "-100)]) => -100)]).int()",
        ],
        "The inputs are of another type: new_zeros keeps it, torch.zeros is float32.": (
            "inputs.new_zeros => torch.zeros"
        ),
        NOT_FINITE: "shape[1:]) => shape[1:]) + torch.nan",
        NOT_ZEROS: [
            "shape[1:]) => shape[1:]) + 1e30",
            "inputs.new_zeros(more, *inputs.shape[1:]) => inputs[-1:].repeat_interleave(more, 0)",
        ],
        IN_PLACE: "torch.cat([inputs, rows]) => inputs.set_(torch.cat([inputs, rows]))",
        "Add the rows behind those of the batch.": (
            "[inputs, rows] => [rows, inputs]",
            "targets, targets.new_full((more,), -100) => targets.new_full((more,), -100), targets",
        ),
        "First the inputs, then the targets.": lambda *given: my_padded(*given)[::-1],
        "Two things are asked for: (inputs, targets).": lambda *given: my_padded(*given)[0],
        "F.pad counts from the last dimension; (0, 0, 0, more) is right with two of them.": (
            "torch.cat([inputs, rows]) => nn.functional.pad(inputs, (0, 0, 0, more))"
        ),
        "inputs[:more] holds at most the rows there are, fewer than may be missing.": (
            "inputs.new_zeros(more, *inputs.shape[1:]) => torch.zeros_like(inputs[:more])"
        ),
        "-rows % microbatches": [
            "-len(inputs) % microbatches => 1",
            lambda i, t, parts: (i.numpy(), t),
            lambda i, t, parts: (i.sum(), t.sum()),
        ],
        "None is what a function without return": lambda *_: None,
    },
    also_right=[row_by_row],
)
