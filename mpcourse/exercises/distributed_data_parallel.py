"""Exercises of page `distributed_data_parallel`: hooks, buckets, a step of micro-batches."""

import contextlib
import inspect

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import nn

from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, during, numbers, same, short

LEFT_OVER = "Your lines ran, but `return ...` still stands at the end: it has to go."
UNWAITED = "Before wait() returns, the tensor holds this rank's numbers: wait for each message."
SUMS_ALONE = "This all_reduce adds up, and offers no other op: leave it out, and divide by count."
WAITS_IN_A_HOOK = "A hook waited, and the backward stood still meanwhile: wait in finish alone."
TWICE = "A message was waited for twice: each has its own wait(), then finish empties the list."
UNDER_WAY = "The tensor was changed before its message was waited for: divide after wait()."
FROZEN = "A frozen parameter stays frozen, and takes no hook: leave it out."
TWO_SENT = "One call of a hook has sent twice: each sends the .grad of its own parameter, once."
WEIGHTS = "These are the weights: all_reduce takes the parameter's .grad."
BLOCKS = "Without async_op=True all_reduce waits for the sum, and the backward with it."
NOT_FULL = "Buckets fill as gradients arrive: one is sent when it holds `size`, then is empty."
REST = "The last bucket is not full, and nobody sent it: that is the first task of finish."
LATE = "A bucket is any `size` gradients, as they arrive: send it in the hook that fills it."
NO_HOOK = "A parameter has no hook: each that requires a gradient takes one."
ONE_TENSOR = "A full bucket leaves as one tensor: torch.cat the flattened gradients, and send that."
OF_ARGUMENT = "Call the argument all_reduce: in the check it stands for torch.distributed's."
SECOND_IS_OP = "The second argument of all_reduce is the op: write async_op=True."
SENT_AGAIN = "This tensor was sent before: after wait() it holds the sum, so send it once."
OTHER_DTYPE = (
    "A gradient has its parameter's dtype: send the numbers without half() or another cast."
)
SHARED = "A default list is made once, and all modules would share it: make it in the function."
FEWER_RANKS = "There are {0} ranks: divide by count."
ARGUMENT = "torch calls the hook with one argument: the parameter."
TOO_EARLY = "register_hook calls before .grad is written: it is register_post_accumulate_grad_hook."
CHILDREN = "in module.parameters() => in [p for m in module for p in m._parameters.values()]"
REMOVED = "hook({0}) => hook({0}).remove()"
DROPPED = (  # each hook removes itself when it has run once
    "parameter.register => handles[parameter] = parameter.register",
    "def {0}(parameter): => handles = {{}}\n"
    "    def {0}(parameter):\n        handles[parameter].remove()",
)
NO_BIAS = "parameter.requires_grad: => parameter.requires_grad and parameter.dim() > 1:"


def refuse_if(wrong, words):
    """Say what is wrong."""
    if wrong:
        raise NotYet(words)


class Message:
    """What `all_reduce(tensor, async_op=True)` returns: the sum is there after `wait`."""

    def __init__(self, tensor, count, backward):
        self.holds = len(tensor.frexp()[0].unique())  # a gradient's numbers share a mantissa
        self.count, self.backward = count, backward
        self.tensor, self.sent, self.waited = tensor, tensor.detach().clone(), False

    def wait(self):
        """Let the sum arrive, unless the backward would stand still for it."""
        refuse_if(self.backward, WAITS_IN_A_HOOK)
        refuse_if(self.waited, TWICE)
        refuse_if(not torch.equal(self.tensor, self.sent), UNDER_WAY)
        self.waited = True
        self.tensor.detach().mul_(sum(range(1, self.count + 1)))  # rank r has r + 1 times as much


def two_steps(attempt, count, frozen, *size):
    """Of two steps on rank 0: how many gradients each message held, and the gradients after it."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 2)), nn.Linear(2, 1))
    net[0].weight.requires_grad_(not frozen)
    backward, sent, there, steps = [], [], [], []

    def all_reduce(tensor, op=None, group=None, async_op=False):
        own = [p._post_accumulate_grad_hooks for p in net.parameters() if p.requires_grad]
        there.append({name for name, p in net.named_parameters() if p.grad is not None})
        refuse_if(not size and set().union(*there) - there[-1], RETURNS_NONE)
        refuse_if(not size and ((tensor is None and any(own)) or there[-1] in there[:-1]), TWO_SENT)
        refuse_if(op is True, SECOND_IS_OP)
        refuse_if(op not in (None, torch.distributed.ReduceOp.SUM), SUMS_ALONE)
        refuse_if(any(torch.isin(tensor.detach(), p).any() for p in net.parameters()), WEIGHTS)
        refuse_if(size and backward and not async_op, BLOCKS)  # `finish` may wait
        refuse_if(not tensor.numel(), NOTHING_LEFT)
        again = any(tensor.data_ptr() == message.tensor.data_ptr() for message in sent)
        refuse_if(size and again, SENT_AGAIN)
        sent.append(Message(tensor, count, size and backward))
        if size and len(there[-1]) > sum(message.holds for message in sent):
            refuse_if(any(own) and not all(own), NO_HOOK)
            raise NotYet(ONE_TENSOR if sent[-1].holds < min(size[0], len(there[-1])) else LATE)
        return sent[-1] if async_op else sent[-1].wait()

    defaults = getattr(inspect.unwrap(attempt), "__defaults__", None) or ()
    refuse_if(any(isinstance(each, list) for each in defaults), SHARED)
    with during("while the hooks were made"):
        finish = inspect.unwrap(attempt)(net, all_reduce, count, *size)
    if finish is ...:
        refuse_if(any(p._post_accumulate_grad_hooks for p in net.parameters()), LEFT_OVER)
        raise NotAttempted
    refuse_if(frozen and net[0].weight.requires_grad, FROZEN)
    refuse_if(size and not callable(finish), "Return the function finish, and do not call it.")
    for step in (0, 1):
        net.zero_grad(), sent.clear(), there.clear(), backward.append(step)
        own = [parameter for parameter in net.parameters() if parameter.requires_grad]
        with during(f"in the backward of step {step}"):
            odd = [*enumerate(own, 50 * step)]  # each next number of a gradient is twice as large
            if step:  # gradients arrive in an order that is not the parameters'
                odd = odd[::2] + odd[1::2]
            loss = sum((2 * i + 1) * p.flatten() @ 2.0 ** torch.arange(p.numel()) for i, p in odd)
            loss.backward()
        backward.clear()
        with during(f"in finish, step {step}"):
            size and finish()
        nothing = size and not sent and size[0] <= len(own)
        refuse_if(nothing and not any(p._post_accumulate_grad_hooks for p in own), NO_HOOKS)
        refuse_if(nothing, IDLE)
        refuse_if(not all(message.waited for message in sent), UNWAITED)
        held = [message.holds for message in sent]
        refuse_if(size and any(each != size[0] for each in held[:-1]), f"sent {held}: {NOT_FULL}")
        refuse_if(size and sum(held) < len(own), REST)
        steps.append({"messages": size and held} | {n: p.grad for n, p in net.named_parameters()})
    return steps


def ranks(count, frozen, *size):
    """The case in words."""
    more = [f", {each} to a bucket" for each in size] + [", the first weight frozen"] * frozen
    return f"{count} ranks (rank 1's gradients are twice rank 0's)" + "".join(more)


def first_difference(outcome, expected):
    """Outcomes are a dict for each step."""
    for step, (found, wanted) in enumerate(zip(outcome, expected, strict=False)):
        for name, right in wanted.items():
            if not same(got := found.get(name), right):
                return [f"step {step}, {name}:", f"expected {short(right)}", f"got {short(got)}"]
    return []


def my_hooks(module, all_reduce, count):
    """A hook on each parameter that takes part sums over the ranks. Then it divides."""

    def average(parameter):
        all_reduce(parameter.grad)
        parameter.grad /= count

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)


CALLED_AT_ONCE = "No backward has run yet: register a function, do not call it."
RETURNS_NONE = "all_reduce adds up in place and returns None: read the parameter's .grad after it."
NOTHING_TO_DIVIDE = (
    "all_reduce returns None; and a hook by register_hook runs before .grad is written. In a "
    "post-accumulate-grad hook, divide .grad after all_reduce."
)
TWICE_DIVIDED = "It was divided by the number of ranks twice."
RETURNED = "A hook returns nothing: put the average into the parameter's .grad."
LOOPS = "When a hook runs, the loop's variable is the last parameter: use the hook's argument."

check_hooks = Exercise(
    my_hooks,
    read_again='"Who averages, and when?"',
    cases=[(2, False), (3, False), (3, True)],
    given=ranks,
    play=two_steps,
    compared=first_difference,
    correct="Averages after every backward, with 2 and 3 ranks, and with a frozen weight.",
    hint="Each .grad is the sum over all ranks, divided once by their number.",
    wrong={
        "That is the sum: divide .grad itself by the {0} ranks.": "parameter.grad /= count => ",
        "It was divided, but not summed over the ranks.": "all_reduce(parameter.grad) => ",
        "That is rank 0's own gradient: no hook has averaged it, or one has averaged a copy.": [
            "hook(average) => hook",
            REMOVED.format("average"),
            ("(parameter.grad) => (parameter.grad / count)", "parameter.grad /= count => pass"),
            "hook(average) => hook(average); break",
            "in module.parameters() => in [m.weight for m in module if hasattr(m, 'weight')]",
        ],
        TWICE_DIVIDED: [
            "/= count => /= count**2",
            "all_reduce(parameter.grad) => parameter.grad /= count; all_reduce(parameter.grad)",
        ],
        "In the next backward this hook is gone: register it once, and let it stay.": tuple(
            change.format("average") for change in DROPPED
        ),
        "The loop ends at a frozen parameter: go on with the next.": (
            "if parameter.requires_grad: => if not parameter.requires_grad: break\n        else:"
        ),
        "A parameter with one dimension, a bias, is left out.": NO_BIAS,
        FEWER_RANKS: "/= count => /= 2",
        LOOPS: "average(parameter): => average(_):",
        WEIGHTS: "all_reduce(parameter.grad) => all_reduce(parameter.data)",
        TWO_SENT: [
            "all_reduce(parameter.grad) => [all_reduce(p.grad) for p in module.parameters()]",
            (
                "parameter.register => module[0].weight.register",
                "(average) => (lambda _, p=parameter: average(p))",
            ),
        ],
        "A nested layer is left out.": CHILDREN,
        CALLED_AT_ONCE: "hook(average) => hook(average(parameter))",
        RETURNS_NONE: [
            "all_reduce( => parameter.grad = all_reduce(",
            ("all_reduce( => parameter.grad = all_reduce(", "parameter.grad /= count => pass"),
        ],
        NOTHING_TO_DIVIDE: (
            "all_reduce(parameter.grad) => all_reduce(parameter.grad).div_(count)",
            "parameter.grad /= count => pass",
        ),
        RETURNED: "parameter.grad /= count => return parameter.grad / count",
        TOO_EARLY: "_post_accumulate_grad => ",
        ARGUMENT: "average(parameter): => average(module, parameter):",
        "Keep the three arguments: module, all_reduce, count.": "reduce, count): => reduce):",
        OF_ARGUMENT: "all_reduce(parameter => torch.distributed.all_reduce(parameter",
        FROZEN: [
            "parameter.requires_grad: => True:",
            "if parameter.requires_grad: => for _ in [parameter.requires_grad_()]:",
        ],
        LEFT_OVER: "hook(average) => hook(average)\n    return ...",
    },
    errors={
        "require.* grad.*, while the hooks": FROZEN,
        "process group": OF_ARGUMENT,
        "NoneType.*, while the hooks": CALLED_AT_ONCE,
        "hooks? (should return None|returned)": RETURNED,
        r"my_hooks\(\) .*positional": "Keep the three arguments: module, all_reduce, count.",
        "positional argument": ARGUMENT,
        "NoneType.* '(div|mul)_?'.*, in the backward": NOTHING_TO_DIVIDE,
        "NoneType.* no attribute.*, in the backward": TOO_EARLY,
        "NoneType.*, in the backward": RETURNS_NONE,
    },
    also_right=["(parameter.grad) => (parameter.grad, async_op=True).wait()"],
)


def my_buckets(module, all_reduce, count, size):
    """The hook sends a full bucket; a copy of its list stays. `finish` alone waits."""
    bucket, sent = [], []

    def send():
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
        sent.append((bucket.copy(), flat, all_reduce(flat, async_op=True)))
        bucket.clear()

    def on_gradient(parameter):
        bucket.append(parameter)
        if len(bucket) == size:
            send()

    def finish():
        if bucket:
            send()
        for parameters, flat, message in sent:
            message.wait()
            pieces = flat.split([parameter.numel() for parameter in parameters])
            for parameter, piece in zip(parameters, pieces, strict=True):
                parameter.grad = piece.view_as(parameter) / count
        sent.clear()

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(on_gradient)
    return finish


EMPTIED = "clear() has emptied the list that is kept with the message: keep a copy."
PIECES = "A piece has numel() numbers of its parameter, in the bucket's order; view_as shapes it."
ASKS = "Nothing here has to ask whether a message is over: `message.wait()` returns when it is."
FLAT = "Gradients differ in shape: flatten each before torch.cat."
LEFT_FULL = (
    "A parameter enters the bucket in its own hook, in each step; finish sends the rest and "
    "empties the bucket."
)
LOCAL = "An assignment in a function makes a new local name: use clear() for a list, or nonlocal."
NO_HOOKS = "No parameter keeps a post-accumulate-grad hook: register one on each, and let it stay."
IDLE = "Hooks ran, and nothing was sent: each adds its parameter, and sends a full bucket."
HOOK_RETURNS = "A hook returns nothing: it calls what is to be done."
NOTHING_LEFT = "The last bucket was full and has left: finish sends only one that holds something."

check_buckets = Exercise(
    my_buckets,
    read_again='"When can the first gradient leave?"',
    cases=[(2, False, 2), (3, False, 4), (3, False, 1), (2, False, 9), (3, True, 2)],
    given=ranks,
    play=two_steps,
    compared=first_difference,
    correct="Full buckets leave in the backward, finish alone waits, and {count} worlds agree.",
    hint="Keep a copied list, tensor and message. After wait(): split, view_as, divide.",
    wrong={
        BLOCKS: ", async_op=True => ",
        WAITS_IN_A_HOOK: "async_op=True) => async_op=True).wait()",
        SECOND_IS_OP: "async_op=True => True",
        SENT_AGAIN: "message.wait() => message.wait(), all_reduce(flat)",
        OTHER_DTYPE: "in bucket]) => in bucket]).half()",
        LATE: (
            "parameter.register_post_accumulate_grad_hook(on_gradient) => pass",
            "finish(): => finish():\n        [*map(on_gradient, module.parameters())]",
        ),
        NO_HOOK: [NO_BIAS, CHILDREN],
        ONE_TENSOR: (
            "all_reduce(flat, async_op=True) => [all_reduce(p.grad, async_op=1) for p in bucket]",
            "message.wait() => [each.wait() for each in message]",
        ),
        NOT_FULL: [
            "== size => > size",
            "len(bucket) == size => True",
            "if len(bucket) == size => order = [*map(id, module.parameters())][::-1]\n        "
            "if (order.index(id(parameter)) + 1) % size == 0",
        ],
        REST: "if bucket: => if False:",
        "All left together: a hook sends as soon as `size` gradients (not numbers) wait.": [
            "len(bucket) == size => sum(each.numel() for each in bucket) == size",
            "len(bucket) == size => False",
        ],
        "A bucket that has left begins again: empty.": "bucket.clear() => ",
        LEFT_FULL: (
            "bucket.clear() => pass",
            "size:\n            send() => size: send(), bucket.clear()",
        ),
        LOCAL: "bucket.clear() => bucket = []",
        SHARED: (
            "count, size): => count, size, bucket=[], sent=[]):",
            "    bucket, sent = [], []\n => ",
        ),
        WEIGHTS: "parameter.grad.flatten() => parameter.flatten()",
        FLAT: "parameter.grad.flatten() => parameter.grad",
        PIECES: [
            "parameter.numel() => len(parameter)",
            "piece.view_as(parameter) => piece",
            "zip(parameters, => zip(parameters[::-1],",
            "pieces = flat.split([parameter.numel() for parameter in parameters]) => "
            "pieces = flat.split([parameter.numel() for parameter in parameters])[::-1]",
        ],
        "The numbers of a piece are out of order: view_as(parameter) puts each into its place.": [
            "piece.view_as(parameter) => piece.view(parameter.shape[::-1]).t()",
            "parameter.grad.flatten() => parameter.grad.t().flatten()",
            "piece.view_as => piece.flip(0).view_as",
        ],
        TWICE_DIVIDED: [
            ") / count => ) / count / count",
            "flat = torch.cat( => flat = 1 / count * torch.cat(",
        ],
        "The pieces are in another order: split gives them as torch.cat has joined them.": [
            "in bucket]) => in bucket[::-1]])",
            "flat.split => flat.flip(0).split",
        ],
        NO_HOOKS: [
            REMOVED.format("on_gradient"),
            "hook(on_gradient) => hook",
            tuple(change.format("on_gradient") for change in DROPPED),
        ],
        IDLE: ["bucket.append(parameter) => pass", "hook(on_gradient) => hook(lambda _: None)"],
        HOOK_RETURNS: "hook(on_gradient) => hook(lambda _: on_gradient)",
        CALLED_AT_ONCE: "hook(on_gradient) => hook(on_gradient(parameter))",
        ARGUMENT: "on_gradient(parameter): => on_gradient():",
        "Keep the arguments: module, all_reduce, count, size.": "count, size): => count):",
        "The loop calls finish(), with no argument.": "finish(): => finish(messages):",
        "A function called in finish has too many or too few arguments.": (
            "message.wait() => send(message)"
        ),
        TOO_EARLY: "_post_accumulate_grad => ",
        OF_ARGUMENT: "all_reduce(flat => torch.distributed.all_reduce(flat",
        NOTHING_LEFT: [
            "if bucket: => if True:",
            ("if bucket: => if True:", "in bucket]) => in bucket] + [torch.zeros(0)])"),
        ],
        UNWAITED: "message.wait() => ",
        ASKS: "message.wait() => while not message.is_completed(): pass",
        TWICE: ["sent.clear() => ", "message.wait() => sent[-1][2].wait()"],
        FROZEN: [
            "parameter.requires_grad: => True:",
            "if parameter.requires_grad: => for _ in [parameter.requires_grad_()]:",
        ],
        UNDER_WAY: ("bucket.clear() => bucket.clear(), flat.div_(count)", ") / count => )"),
        "That is the sum over the ranks: divide by count.": ") / count => )",
        FEWER_RANKS: [
            f") / count => ) / {n}" for n in ("size", "len(parameters)", "len(sent)", "2")
        ],
        EMPTIED: "bucket.copy() => bucket",
        "No average is in .grad: assign it, looping over a copied list.": "parameter.grad = => _ =",
        "Each piece begins where the one before it ends: split does this.": (
            "(parameters, pieces, => (parameters, [flat] * 9,",
            "piece.view_as => piece[: parameter.numel()].view_as",
            ", strict=True => ",
        ),
        "This rank's own gradient is still in it: replace .grad.": "grad = => grad +=",
    },
    errors={
        "require.*while": FROZEN,
        "process group": OF_ARGUMENT,
        r"my_buckets\(\) .*positional": "Keep the arguments: module, all_reduce, count, size.",
        r"finish\(\) .*positional.*, in finish": "The loop calls finish(), with no argument.",
        "positional.*, in finish": "A function called in finish has too many or too few arguments.",
        "positional argument": ARGUMENT,
        "NoneType.* no attribute.*, in the backward of step 1": LEFT_FULL,
        "NoneType.* no attribute.*, in the backward": TOO_EARLY,
        "UnboundLocalError": LOCAL,
        "non-empty.*finish": NOTHING_LEFT,
        "hooks? (should return None|returned)": HOOK_RETURNS,
        "NoneType.*, while the hooks": CALLED_AT_ONCE,
        r"split_sizes=\[\]": EMPTIED,
        "is_completed": ASKS,
        "assign a gradient with dtype|data of a different type": OTHER_DTYPE,
        "split_sizes|gradient of size|is invalid for input": PIECES,
        "number of dimensions|equal size|[Ss]izes of tensors": FLAT,
    },
    also_right=[
        ("torch.cat => 1 / count * torch.hstack", ") / count => )"),
        "bucket.append(parameter) => bucket.insert(0, parameter)",
        "in module.parameters() => in reversed([*module.parameters()])",
        "== size => == size or all(p.grad is not None for p in module.parameters())",
        (  # the rest is sent in `finish`, which may wait for it at once
            "def send(): => def send(later=True):",
            "async_op=True) => async_op=later)",
            "if bucket:\n            send() => if bucket:\n            send(later=False)",
            "message.wait() => message and message.wait()",
        ),
    ],
)


def my_ddp_step(model, optimizer, micro_batches):
    """The last backward sends what all have added up. A forward decides for its backward."""
    total = sum(len(labels) for _, labels in micro_batches)

    def backward(images, labels):
        loss = nn.functional.cross_entropy(model(images), labels, reduction="sum")
        (loss / total).backward()
        return loss.item()

    *others, last = micro_batches
    with model.no_sync():
        summed = sum(backward(*each) for each in others)
    summed += backward(*last)
    optimizer.step()
    optimizer.zero_grad()
    return summed, total


TOO_OFTEN = "One all-reduce is enough: all micro-batches but the last belong inside no_sync."
NOT_SENT = "Nothing was sent: the last one's forward belongs outside no_sync."
FORWARD = "The forward decides: model(images) belongs inside no_sync, as the backward does."
NO_CALL = "no_sync is a method: `with model.no_sync():`, with brackets."
INSIDE = "    summed += =>         summed +="
LOST = "zero_grad() deletes what the backwards have added up: call it once, after step()."
SAMPLES = "Count samples, not micro-batches: the labels of all, before the first backward."
MEANS = "A mean of means: a sample of a short micro-batch counts for more. Divide sums."
ANY_NUMBER = "There may be any number of micro-batches, also one: loop over the list."
ON = "model.require_backward_grad_sync"  # DDP's own no_sync sets it
TWICE_A_MEAN = 'cross_entropy is a mean already, unless reduction="sum" says otherwise.'
GRAPH = "The sum of losses carries a graph, which keeps memory: add up loss.item()."
ROUND = "model.module skips DDP's forward, which prepares the sending: call model(images)."
CLIPPED = "Here nothing is clipped. A step that clips does it once: after the last backward."
THEIRS = "The list is the caller's: take it apart without a change, as in `*others, last = …`."
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
SECOND = "Of more than two, the second is not the last: compare with len(micro_batches) - 1."
ONE_STEP = "One optimizer step for all micro-batches."
RATE = "The learning rate is the caller's: divide each loss, and leave the rate."
EVAL = "eval() is for measuring: it switches dropout and batch norm. A training step leaves it out."
NO_GRAD = "Inside no_grad no graph is kept for a backward: the method meant here is model.no_sync."
BY_ITSELF = "DDP sends and averages by itself: the step calls nothing of torch.distributed."


class Replica(nn.Module):
    """What DDP does with its forward, `no_sync` and the backward, told to `done`."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(3, 2, bias=False).double()
        self.require_backward_grad_sync, self.sends, self.inside, self.done = True, False, False, []
        self.module.weight.register_post_accumulate_grad_hook(self.note)
        self.module.register_forward_pre_hook(lambda *_: refuse_if(not self.inside, ROUND))

    def note(self, _):
        """Say of a backward whether DDP would have sent in it."""
        refuse_if("step" in self.done, ONE_STEP)
        refuse_if(self.sends and not self.require_backward_grad_sync, FORWARD)
        self.done.append("sent" if self.sends else "kept")

    def forward(self, rows):
        """Settle, as DDP's does, whether the backward sends."""
        refuse_if(not torch.is_grad_enabled(), NO_GRAD)
        refuse_if(not self.training, EVAL)
        self.sends, self.inside = self.require_backward_grad_sync, True
        result, self.inside = self.module(rows), False
        return result

    @contextlib.contextmanager
    def no_sync(self):
        """Keep gradients on the rank."""
        self.require_backward_grad_sync = False
        yield
        self.require_backward_grad_sync = True


def stepped(attempt, *sizes):
    """Of two steps: which backwards sent and when the optimizer stepped, the weight, the return."""
    torch.default_generator.manual_seed(sum(sizes))
    model, steps = Replica(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.register_step_post_hook(lambda *_: model.done.append("step"))
    for step in (0, 1):
        model.done.clear()
        parts = [(4 * torch.randn(n, 3).double(), torch.randint(2, (n,))) for n in sizes]
        before = [*map(id, parts)]
        with during(f"in step {step}"):
            result = inspect.unwrap(attempt)(model, optimizer, parts)
        if result is ...:
            refuse_if(model.done, LEFT_OVER)
            raise NotAttempted
        refuse_if("grad_fn" in repr(result), GRAPH)
        refuse_if([*map(id, parts)] != before, THEIRS)
        refuse_if(optimizer.param_groups[0]["lr"] != 0.5, RATE)
        after = {"weight": model.module.weight.detach().clone(), "returned": numbers(result)}
        steps.append({"backwards and steps": model.done.copy()} | after)
    return steps


check_ddp_step = Exercise(
    my_ddp_step,
    read_again='"One program for CPUs, one GPU and several"',
    cases=[(4, 4), (3,), (5, 1, 2)],
    given=lambda *sizes: f"micro-batches of {', '.join(map(str, sizes))} samples",
    play=stepped,
    compared=first_difference,
    correct="One all-reduce a step, and the gradient of the mean over all samples, {count} times.",
    hint="Divide each sum of losses by all samples. The last backward sends; then one step. "
    "Nothing else changes .grad.",
    wrong={
        TOO_OFTEN: "model.no_sync() => contextlib.nullcontext()",
        NOT_SENT: [INSIDE, (INSIDE, "loss / total => loss")],
        FORWARD: ("with model.no_sync() => if True", "(loss / => with model.no_sync(): (loss /"),
        EVAL: "total = => model.eval()\n    total =",
        NO_GRAD: "with model.no_sync() => with torch.no_grad()",
        RATE: (
            "optimizer.step() => optimizer.param_groups[0]['lr'] /= len(micro_batches)\n"
            "    optimizer.step()"
        ),
        SECOND: (
            "*others, last = => others =",
            "    with model.no_sync():\n => ",
            "        summed = sum(backward(*each) for each in others)\n => ",
            "    summed += backward(*last) => "
            "    summed = 0\n    for i, each in enumerate(others):\n"
            "        with contextlib.nullcontext() if i == 1 else model.no_sync():\n"
            "            summed += backward(*each)",
        ),
        ONE_STEP: [
            changes
            for each in ("optimizer.step()", "optimizer.step(), optimizer.zero_grad()")
            for steps in [f"return loss => {each}; return loss"]
            for changes in (steps, (steps, "(*last)\n    optimizer.step() => (*last)"))
        ],
        "The last step's gradients are in it, too: zero_grad once a step.": ".zero_grad() => ",
        LOST: ["step() => zero_grad(), optimizer.step()", "(loss => optimizer.zero_grad(); (loss"],
        "Gradients add up: divide each loss, so that their sum is that of the mean.": [
            "loss / total => loss",
            "loss / total => loss / len(labels)",
            (', reduction="sum" => ', "loss / total => loss"),
        ],
        SAMPLES: [
            "sum(len(labels) => sum(2",
            (  # a running count
                "(len(labels) for _, labels in micro_batches) => ([])",
                "loss = => nonlocal total\n        total += len(labels)\n        loss =",
            ),
            *(f"summed, total => summed, len({of})" for of in ("micro_batches", "last[1]")),
        ],
        MEANS: "loss / total => loss / len(labels) / len(micro_batches)",
        "That is divided once too often: by all samples is enough, DDP divides by the ranks.": [
            "loss / total => loss / total / len(micro_batches)",
            "loss / total => loss / total / 2",
        ],
        CLIPPED: [
            f".backward() => .backward(); {CLIP}",
            f"optimizer.step() => {CLIP}; optimizer.step()",
            f".backward() => .backward(); {CLIP.replace('norm', 'value')}",
        ],
        THEIRS: [
            "*others, last = micro_batches => others, last = micro_batches, micro_batches.pop()",
            "*others, last => micro_batches.reverse(); *others, last",
        ],
        "Return the sum of all losses, then the number of samples: neither is divided.": [
            *(f"summed, total => summed{end}" for end in ("", " / total", " / total, total")),
            "summed, total => summed / len(micro_batches), total",
            "summed, total => summed, 2 * total",
            "summed, total => summed / total, 1",
            "summed, total => summed / total, len(micro_batches)",
            "summed, total => total, summed",
            "return summed, total => pass",
            "loss.item() => loss.item() / len(labels)",
        ],
        "The optimizer has to step: once, after the last backward.": "optimizer.step() => pass",
        "One backward for all samples needs the memory of all: one for each micro-batch.": (
            "*others, last = micro_batches => others = []",
            "(*last) => (*map(torch.cat, zip(*micro_batches)))",
        ),
        "The last backward sends: what the others add after that stays on its rank.": (
            "*others, last = micro_batches => last, *others = micro_batches",
            "with model.no_sync(): => summed = backward(*last)\n    with model.no_sync():",
            "summed = sum( => summed += sum(",
            "    summed += backward(*last)\n => ",
        ),
        "Add up losses and counts of all micro-batches, not of the last alone.": [
            "summed += => summed =",
            ("summed += => summed =", "summed, total => summed, len(last[1])"),
        ],
        "cross_entropy has a softmax: it takes model(images).": "(images) => (images).softmax(1)",
        TWICE_A_MEAN: ', reduction="sum" => ',
        GRAPH: "loss.item() => loss",
        ROUND: "model(images) => model.module(images)",
        BY_ITSELF: "optimizer.step() => torch.distributed.barrier(), optimizer.step()",
        NO_CALL: "no_sync() => no_sync",
        "Lengths differ: add them up.": "sum(len(labels) => len(micro_batches[0][1]) * sum(1",
        "The last one runs twice.": "in others => in micro_batches",
        "The first one never runs.": "*others, last = => first, *others, last =",
        "The last one never runs.": "    summed += backward(*last)\n => ",
        LEFT_OVER: "return summed, total => return ...",
        ANY_NUMBER: ("*others, last = => first, last =", "in others => in [first]"),
    },
    errors={
        r"values to unpack \(expected 2": ANY_NUMBER,
        "context manager": NO_CALL,
        "process group": BY_ITSELF,
    },
    also_right=[(f"with model.no_sync() => for {ON} in [0]", f"summed += => {ON} = 1; summed +=")],
)
