"""Exercises of page `long_sequences`: parts that merge, a ring, its way home, a slip, a link."""

from functools import partial
from weakref import WeakSet

import torch
from torch import distributed, nn

from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, same, short
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import merge
from mpcourse.transformer.ring_attention import _pass_on

WAIT_S = 5.0  # for ranks that send different messages


def drawn(seed, *shapes):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).double() for shape in shapes]


OVERFLOW = "`exp` of hundreds is inf, of minus hundreds 0: first subtract a row's new log-sum."
LOG_SUM = "The outputs are right. The log-sum is that of all keys: sums add up, not logarithms."
WEIGH = "In each row, a part's weight is its share of all exponentials. Return the log-sum, too."
NO_KEYS = (
    "A part of no keys has the log-sum -inf and weighs 0: `torch.logaddexp` makes no nan of it."
)
CLAMPED = "Clamped, large log-sums weigh alike: first subtract a row's new log-sum."


def my_merge(first, second):
    """A part's sum of exponentials is `exp` of its log-sum. Its share of both weighs its output."""
    (output_1, log_sum_1), (output_2, log_sum_2) = first, second
    log_sum = torch.logaddexp(log_sum_1, log_sum_2)
    output = (log_sum_1 - log_sum).exp() * output_1 + (log_sum_2 - log_sum).exp() * output_2
    return output, log_sum


def part(scale, seed):
    """Three queries over four keys: one high, one low; or over none."""
    if seed is None:
        return torch.zeros(3, 4).double(), torch.full((3, 1), -torch.inf).double()
    scores, value = drawn(seed, (3, 4), (4, 4))
    scores = scale * scores + torch.tensor([[2.0], [scale], [-scale]]).double()
    return scores.softmax(-1) @ value, scores.logsumexp(-1, keepdim=True)


def merged(attempt, scale, one, two):
    found = attempt(part(scale, one), part(scale, two))
    if isinstance(found, tuple | list) and not all(each.isfinite().all() for each in found):
        raise NotYet(f"got {short(found)}", NO_KEYS if one is None else OVERFLOW)
    return found


def what_to_merge(found, right):
    return LOG_SUM if isinstance(found, tuple | list) and same(found[:1], right[:1]) else WEIGH


check_merge = Exercise(
    my_merge,
    read_again='"Can a softmax be computed in two parts?"',
    cases=[(1.0, 1, 2), (1.0, 3, 4), (2000.0, 5, 6), (2000.0, 6, 5), (1.0, None, 7)],
    given=lambda scale, one, _: (
        f"two partial attentions whose scores are about {scale:g} in size"
        + ", the first over no keys" * (one is None)
    ),
    play=merged,
    hint=what_to_merge,
    wrong={
        "A plain mean: the larger sum of exponentials weighs more.": (
            "return output => return (output_1 + output_2) / 2"
        ),
        "Both weights together have to sum to 1.": [
            "return output => return output_1 + output_2",
            "- log_sum) => - torch.maximum(log_sum_1, log_sum_2))",
            "logaddexp( => maximum(",
            ("(log_sum_1 - log_sum) => log_sum_1", "(log_sum_2 - log_sum) => log_sum_2"),
        ],
        "A log-sum is a logarithm: weigh by its `exp`.": [
            tuple(f"(log_sum_{n} - log_sum).exp() => {weight.format(n)}" for n in (1, 2))
            for weight in (
                "log_sum_{0} / (log_sum_1 + log_sum_2)",
                "log_sum_{0} / log_sum",
                "(log_sum_{0} - log_sum)",
            )
        ],
        "What was subtracted before `exp` has to be added back after `log`.": [
            f"{each} => {each} - torch.maximum(log_sum_1, log_sum_2)"
            for each in ("return output, log_sum", "logaddexp(log_sum_1, log_sum_2)")
        ],
        "Return two: the output, then the log-sum, one column (T, 1).": [
            "output, log_sum => output",
            "output, log_sum => log_sum, output",
            "output, log_sum => output, log_sum[:, 0]",
        ],
        "This is the sum itself: return its logarithm.": "output, log_sum => output, log_sum.exp()",
        OVERFLOW: [
            "logaddexp(log_sum_1, log_sum_2) => log(log_sum_1.exp() + log_sum_2.exp())",
            *[  # one part's log-sum is subtracted, not the larger one
                "torch.logaddexp(log_sum_1, log_sum_2) => "
                f"{here} + ({there} - {here}).exp().log1p()"
                for here, there in (("log_sum_1", "log_sum_2"), ("log_sum_2", "log_sum_1"))
            ],
            (over := " - log_sum).exp() => ).exp() / (log_sum_1.exp() + log_sum_2.exp())"),
            (over, "return output => return output.nan_to_num()"),
        ],
        NO_KEYS: (
            "torch.logaddexp(log_sum_1, log_sum_2) => "
            "log_sum_1 - nn.functional.logsigmoid(log_sum_1 - log_sum_2)"
        ),
        CLAMPED: [
            f"return output, log_sum => one, two = (each.clamp(max={most}).exp() for each in "
            "(log_sum_1, log_sum_2)); "
            f"return (one * output_1 + two * output_2) / (one + two), {of_all}"
            for most, of_all in ((80, "log_sum"), (700, "log_sum"), (80, "(one + two).log()"))
        ],
        LOG_SUM: [
            f"output, log_sum => output, {each}"
            for each in ("log_sum_1 + log_sum_2", "log_sum_1", "torch.fmax(log_sum_1, log_sum_2)")
        ],
        "Each weight belongs to its own part's output.": (
            "(output_1, log_sum_1), (output_2, => (output_2, log_sum_1), (output_1,"
        ),
    },
    errors={"size of tensor": "A log-sum (T, 1) less one of shape (T,) is (T, T): use `keepdim`."},
    also_right=["output, log_sum => [output, log_sum]"],
)

WHOSE = "What is here in a step comes from rank `(rank - step) % ranks`: compute with that block."
NEXT = "Send the block that is here, so that each visits all ranks, and go on with what arrived."
LAST = "Nobody needs a block after the last step: send n - 1 times; with one rank, never."
MEANWHILE = "Start the message, compute, then call what `send` returned: it travels meanwhile."
SILENT = "Start the message before you compute: call `send(block)`, in each step but the last."
ADD = "What came is of the block that is here, from the ranks before: add your part, send the sum."
EVERY = "Compute with each of the n blocks once. The function that does so knows what is masked."
NOTHING = "After the last step nothing arrives: there is no `arrived` to call."
START = "Zeros weigh `exp(0)`: start from the first part."
UNSET = "This name has no value: in step 0 nothing has come yet, after the last no block comes."
LET_GO = "Merge each part at once: kept to the end, n parts take n times the memory."
WRITTEN = (
    "Do not write into the block: the backward still needs it. `block = arrived()` takes a new one."
)
UNSOLVED = "The `...` comes from what your loop calls: `my_merge` may be unsolved; `merge` is not."
CALL = "`send` returns a function: call it for the block; and leave blocks as they are."


def my_ring(block, rank, ranks, send, attend_to):
    """What is here comes from `step` ranks back. Its message starts first, to travel meanwhile."""
    found = None
    for step in range(ranks):
        arrived = send(block) if step < ranks - 1 else None
        part = attend_to(block, (rank - step) % ranks)
        found = merge(found, part) if found else part
        block = arrived() if arrived else block
    return found


def on_a_ring(attempt, rank, blocks, gives, pass_on=None):
    """The loop on one rank; others send blocks, `gives` uses one, `pass_on` sends gradients."""
    ranks, sent, here, used = len(blocks), [], [], []  # steps: started, arrived, computed with
    waiting, early, sums = [], [], []  # gradients: on their way here, not left time, all sent

    def step_of(block):
        steps = [step for step in range(ranks) if same(block, blocks[rank - step])]
        if not steps:
            raise NotYet(f"got {short(block)} for a block", CALL)
        return steps[0]

    def send(tensor):
        if pass_on and not any(torch.equal(tensor, block) for block in blocks):
            return gradient_of(tensor)
        step = step_of(tensor)
        if step != len(sent) or step == ranks - 1:
            raise NotYet(f"message {len(sent)} of step {step}", NEXT if step != len(sent) else LAST)
        sent.append(step)
        return lambda: here.append(step) or blocks[rank - step - 1].clone()

    def gradient_of(tensor):
        if waiting:
            raise NotYet(f"the gradient sent in step {len(used) - 1}", ADD)
        computed, arrived = len(used), pass_on(tensor)
        waiting.append(computed)
        sums.append(computed)

        def coming():
            waiting.clear()
            early.extend([computed] if computed == len(used) else [])
            return arrived()

        return coming

    def use(block, owner):
        step = step_of(block)
        if step in used:
            raise NotYet(f"again the block of step {step}", NEXT if ranks > 1 else EVERY)
        if pass_on and len(used) - len(sums) > 1:
            raise NotYet(f"no gradient sent in step {len(used) - 1}", KEPT)
        if owner != (rank - step) % ranks:
            raise NotYet(f"the block of step {step} is not that of rank {owner}", WHOSE)
        if step < ranks - 1 and step not in sent:
            raise NotYet(f"no message started in step {step}", SILENT)
        if early or step in here:
            raise NotYet(f"step {step}", MEANWHILE)
        used.append(step)
        return gives(owner)

    try:
        found = attempt(given := blocks[rank].clone(), rank, ranks, send, use)
    except NotAttempted:
        if ranks == 1 or pass_on:
            raise
        raise NotYet("got ..., but not on one rank", UNSOLVED) from None
    if sorted(used) != [*range(ranks)]:
        raise NotYet(f"computed in steps {used} of {ranks}", EVERY)
    if not pass_on and not torch.equal(given, blocks[rank]):
        raise NotYet("the block that was given is not what it was", WRITTEN)
    return found


def one_rank(attempt, rank, ranks):
    query, blocks = drawn(ranks, (3, 4), (ranks, 2, 2, 4))
    kept = WeakSet()  # outputs that the loop still holds

    def gives(owner):
        if len(kept) > 2:
            raise NotYet(f"{len(kept)} parts still kept", LET_GO)
        scores = query @ blocks[owner][0].mT
        kept.add(output := scores.softmax(-1) @ blocks[owner][1])
        return output, scores.logsumexp(-1, keepdim=True)

    return on_a_ring(attempt, rank, blocks, gives)


check_ring_loop = Exercise(
    my_ring,
    read_again='"Keys and values go round"',
    cases=[(0, 1), (1, 2), (0, 3), (2, 5)],
    given="rank {} of {}",
    play=one_rank,
    hint="Parts of other keys merge as in exercise 1: `merge(found, part)`.",
    wrong={
        WHOSE: [f"(rank - step) % ranks => {each}" for each in ("rank", "rank - step")],
        NEXT: [
            ("found = None => own, found = block, None", "send(block) => send(own)"),
            "arrived() if arrived else block => block",
        ],
        NOTHING: "arrived() if arrived else block => arrived()",
        LAST: " if step < ranks - 1 else None => ",
        SILENT: "send(block) if step < ranks - 1 else None => None",
        MEANWHILE: ("send(block) => send(block)()", "arrived() if arrived else block => arrived"),
        EVERY: ["range(ranks) => range(max(1, ranks - 1))", "= None => = attend_to(block, rank)"],
        "Neither a sum nor a mean of outputs: merge them by their log-sums.": [
            changes
            for total in ("merge(found, part)[1]", "part[1]")
            for added in [f"merge(found, part) if found => (found[0] + part[0], {total}) if found"]
            for changes in (added, (added, "return found => return found[0] / ranks, found[1]"))
        ],
        WRITTEN: [
            f"block = arrived() if arrived else block => {each} = arrived() if arrived else block"
            for each in ("block[:]", "block.data")
        ],
        "A part is lost: merge each with what was found before.": [
            "merge(found, part) if found else part => part",
            "if found else => if step > 1 else",
        ],
        UNSET: [
            (
                "arrived = send(block) if step < ranks - 1 else None =>"
                " if step < ranks - 1: new = send(block)",
                "arrived() if arrived else block => new()",
            ),
            "found = None => ",
        ],
        LET_GO: (
            "merge(found, part) if found else part => [*(found or []), part]",
            "return found => while found[1:]: found[:2] = [merge(*found[:2])]\n    return found[0]",
        ),
        UNSOLVED: "merge(found, part) if found => ... if found",
        START: "found = None => found = torch.zeros(3, 4), torch.zeros(3, 1)",
        "Return output and log-sum, as `merge` does.": "return found => return found[0]",
    },
    errors={
        "'NoneType' object is not callable|local variable 'arrived'": NOTHING,
        "local variable": UNSET,
    },
    also_right=["return found => return [*found]"],
)

EARLY = "Nothing to call: in step 0 no gradient is on its way yet, after the last step no block."
NEVER = "A rank waits for what is never sent: each sends as often, whatever is masked."
BOTH = "Return two tensors: the gradients of the queries, then of the block."
WAIT = "`send` returns a function: call the last one, too, for the gradient that comes home."
KEPT = "Send a sum on in each step: kept, gradients fill the memory, and nothing hides them."


def my_way_home(block, rank, ranks, send, backward_of):
    """Blocks go round as in the forward; the gradients of each follow it, one step behind.

    What comes is the sum of the ranks before. This rank adds its own part, and sends the sum on.
    After the last step that sum is on the rank before the block's owner: one trip more.
    """
    of_query, coming = 0, None
    for step in range(ranks):
        arrived = send(block) if step < ranks - 1 else None
        part, of_block = backward_of(block, (rank - step) % ranks)
        of_query = of_query + part
        of_block = of_block + coming() if coming else of_block
        coming = send(of_block)
        block = arrived() if arrived else block
    return of_query, coming()


def all_ranks(attempt, ranks):
    """The loop on all ranks, which send each other gradients."""
    blocks, *parts = drawn(ranks, *(1 + 2 * ranks) * [(ranks, 2, 3)])

    def program(group):
        def gives(owner):
            return parts[group.rank()][owner], parts[group.rank() - ranks][owner]

        found = on_a_ring(attempt, group.rank(), blocks, gives, partial(_pass_on, group=group))
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise NotYet(f"got {short(found)}", BOTH)
        if callable(found[1]):
            raise NotYet("got a function for the block's gradient", WAIT)
        return tuple(found)

    return ranks_in_threads(program, ranks, timeout_s=WAIT_S)


def from_the_next(block, rank, ranks, send, backward_of):
    """A sum starts on the rank after its owner, who adds its own part: n - 1 trips."""
    arrived, coming = send(block) if ranks > 1 else None, None
    of_query, own = backward_of(block, rank)
    for step in range(1, ranks):
        block = arrived()
        arrived = send(block) if step < ranks - 1 else None
        part, of_block = backward_of(block, (rank - step) % ranks)
        of_query, coming = of_query + part, send(of_block + coming() if coming else of_block)
    return of_query, own + (coming() if coming else 0)


check_way_home = Exercise(
    my_way_home,
    read_again='"Where does a key\'s gradient go?"',
    cases=[(1,), (2,), (3,), (4,)],
    given="{} rank(s)",
    play=all_ranks,
    hint="Follow one block: which ranks add to its gradient, and where is the sum after each step?",
    wrong={
        "This is the gradient of another rank's block: after step n - 1 one trip brings it home, "
        "and it stays.": [
            f"of_query, coming() => of_query, {short_or_far}"
            for short_or_far in ("of_block", "send(coming())()")
        ],
        "Other ranks have found gradients for your block, too: these have to come to you.": (
            "+ part => + part; mine = mine if step else of_block",
            "of_query, coming() => of_query, mine",
        ),
        ADD: [
            "+ coming() => + 0 * coming()",
            "of_block + coming() if coming else of_block => of_block",
        ],
        SILENT: (
            "arrived = send(block) if step < ranks - 1 else None => arrived = step < ranks - 1",
            "arrived() if arrived => send(block)() if arrived",
        ),
        MEANWHILE: "coming = send(of_block) => now = send(of_block)(); coming = lambda x=now: x",
        "Queries stay: add up what all blocks give for them.": "of_query + part => part",
        WAIT: "of_query, coming() => of_query, coming",
        "What is sent on is a sum, not a mean: nothing is divided by n.": [
            f"of_query, coming() => of_query{each}, coming() / ranks" for each in ("", " / ranks")
        ],
        "Your queries' gradient is a sum over all blocks, not a mean.": (
            "of_query, coming() => of_query / ranks, coming()"
        ),
        "These are gradients of n blocks: each goes to its own block's owner.": (
            "of_block + coming() if coming else => of_block + total if step else",
            "coming = send(of_block) => total = of_block",
            "of_query, coming() => of_query, total",
        ),
        WHOSE: "rank - step => rank + step",
        EARLY: " if coming else of_block => ",
        UNSET: (
            "arrived = send(block) if step < ranks - 1 else None =>"
            " if step < ranks - 1: new = send(block)",
            "arrived() if arrived else block => new()",
        ),
        EVERY: "range(ranks) => range(rank + 1)",
        NEVER: "coming = send(of_block) => coming = send(of_block) if step < 2 or rank else coming",
        BOTH: ["return of_query, => return", "of_query, coming() => coming(), of_query"],
        KEPT: (
            "coming = send(of_block) => kept = [*(kept if step else []), of_block]",
            "return => for each in kept: coming = send(coming() + each if coming else each)"
            "\n    return",
        ),
    },
    errors={
        "'NoneType' object is not|local variable 'coming'": EARLY,
        "local variable": UNSET,
        "gloo|not returned": NEVER,
    },
    also_right=[from_the_next],
)

ZERO = "A rank that judges no token has 0 / 0: take its sum, and let it join in each `all_reduce`."
EMPTY = "A rank that judges no token, too, computes its loss, 0, from the logits: not a new tensor."
IN_PLACE = "`all_reduce` changes its tensor and returns None: go on with that tensor."
ADDS = "A count of all ranks is a sum: `all_reduce` adds up if no `op` is given."
CUT_OFF = "`detach` or `item` cuts the loss off from the logits: compute it from them as they are."


def my_loss(logits, targets, group):
    """Each rank sums over its own tokens. It divides by the number judged on all ranks."""
    judged = (targets >= 0).sum()
    distributed.all_reduce(judged, group=group)
    total = nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    return total / judged


def on_ranks(attempt, words, judged):
    """The sum of the losses, and gradients; rank r judges `judged[r]` of its four tokens."""
    [logits] = drawn(len(judged), (len(judged), 4, 6))
    targets = torch.arange(4 * len(judged)).view(-1, 4) % 6
    targets[torch.arange(4) >= torch.tensor(judged).unsqueeze(1)] = -100

    def program(group):
        own = logits[group.rank()].clone().requires_grad_()
        loss = attempt(own, targets[group.rank()].clone(), group)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise NotYet(f"got {short(loss)}", "Return one number, a tensor.")
        if loss.isnan():
            raise NotYet(f"got {short(loss)} on a rank", ZERO)
        if loss.requires_grad:
            loss.backward()
        if own.grad is None:
            raise NotYet("no gradient for `logits`", CUT_OFF if judged[group.rank()] else EMPTY)
        return loss.item(), own.grad

    losses, gradients = zip(*ranks_in_threads(program, len(judged), timeout_s=WAIT_S), strict=True)
    gradients = torch.stack(gradients)
    return {"sum": sum(losses), "largest gradient": gradients.abs().max(), "gradients": gradients}


check_loss = Exercise(
    my_loss,
    read_again='"A decoder on n ranks"',
    cases=[("4 and 4", [4, 4]), ("4 and 2", [4, 2]), ("1, 4 and 0", [1, 4, 0])],
    given="ranks on which {0} tokens are judged",
    play=on_ranks,
    hint="The sum of the ranks' losses has to be the mean over all tokens that are judged.",
    wrong={
        "A mean of means is right only where all ranks judge as many: count over all ranks.": (
            '"sum" => "mean"',
            "/ judged => / group.size()",
        ),
        "Everything counts n times: gradients are added. Divide by the sum of the ranks' counts.": (
            '"sum" => "mean"',
            " / judged => ",
        ),
        "That is a mean already: the number judged on all ranks divides a sum.": '"sum" => "mean"',
        "A sum grows with the text: divide by the number judged on all ranks.": " / judged => ",
        "Divide by the judged tokens alone, not by n too.": "/ judged => / judged / group.size()",
        "Count the targets that are not -100: 0 is one of them.": [
            "/ judged => / targets.numel() / group.size()",
            "targets >= 0 => targets > 0",
        ],
        "Return this rank's share: the ranks' losses are added, and yours is that sum already.": (
            "return total => whole = total.detach().clone(); distributed.all_reduce(whole, "
            "group=group); return (total - total.detach() + whole)"
        ),
        EMPTY: "/ judged => / judged if (targets >= 0).any() else torch.tensor(0.0)",
        IN_PLACE: "distributed.all_reduce( => judged = distributed.all_reduce(",
        ZERO: [
            ('"sum" => "mean"', "/ judged => / judged * (targets >= 0).sum()"),
            "distributed.all_reduce( => judged > 0 and distributed.all_reduce(",
        ],
        CUT_OFF: "cross_entropy(logits => cross_entropy(logits.detach().requires_grad_()",
        "Pass `group=group`": ", group=group => ",
        "Leave -100 as it is: `cross_entropy` skips it.": "targets, i => targets.clamp(0), i",
        ADDS: "judged, group=group => judged, group=group, op=distributed.ReduceOp.AVG",
    },
    errors={
        "cast to the desired|ReduceOp.AVG": ADDS,
        "Default process group": "Pass `group=group` to each message.",
        "'NoneType'|parameter `tensor`": IN_PLACE,
        "gloo|had not returned": "Do all ranks send the same messages, in one order?",
    },
    also_right=["(targets >= 0).sum() => (targets != -100).float().sum()"],
)


def my_tokens(rate, speed, matmuls, sent, zigzag):
    """Computing takes `operations * t**2 * w / rate` seconds, the message `sent * t * w / speed`.

    Both are equal where `t * operations / rate` is `sent / speed`. The width drops out.
    """
    operations = matmuls * (1 if zigzag else 2)  # for each of the t * t * w products
    return rate * sent / (speed * operations)


check_tokens = Exercise(
    my_tokens,
    read_again='"When is a message hidden?"',
    cases=[
        (4096.0, 2.0, 2, 16.0, False),
        (4096.0, 2.0, 2, 16.0, True),
        (10240.0, 4.0, 5, 12.0, True),
    ],
    given="rate {0:g}, speed {1:g}, {2} matmuls, sent {3:g}, zigzag {4}",
    hint="Write the seconds of both, set them equal, and solve for t, a number: no width is left.",
    wrong={
        "A matmul has 2 t² w operations; and `sent` counts all that travels, keys and values.": [
            "(1 if zigzag else 2) => (0.5 if zigzag else 1)",
            "(1 if zigzag else 2) => (2 if zigzag else 4)",
            "rate * sent => rate * 2 * sent",
        ],
        "In zigzag order a step has half of the operations: it takes twice as many tokens.": [
            "1 if zigzag else 2 => 2",
            "1 if zigzag else 2 => 4 if zigzag else 2",
            "1 if zigzag else 2 => 1 + zigzag",
        ],
        "The faster a GPU computes, and the slower its link, the more tokens it takes.": [
            ("rate * sent => speed * sent", "(speed * operations => (rate * operations"),
            "rate * sent / (speed => rate * sent * (speed",
        ],
        "The message takes `sent * t * w / speed` seconds: more bytes need more tokens.": [
            *[f"rate * sent => rate{factor}" for factor in ("", " / sent", " * 2", " * 4", " * 8")],
        ],
        "Each matmul is work that hides the message: more of them need fewer tokens.": [
            "matmuls * ( => (",
            "matmuls * ( => 2 * (",
            "(speed * operations) => speed * matmuls / (1 if zigzag else 2)",
            "/ (speed * operations) => / speed * operations",
        ],
        "`sent` and `speed` both count bytes: no bits, so no 8.": [
            f"rate * sent => rate * sent {each}" for each in ("* 8", "/ 8")
        ],
        "The width is in both times, of computing and of the message: it drops out.": [
            f"rate * sent => {width} * rate * sent" for width in (64, 128, 4096)
        ],
        "Computing grows with t², the message with t: divide both by t, and no root is left.": (
            "return rate * sent / (speed * operations) =>"
            " return (rate * sent / (speed * operations)) ** 0.5"
        ),
    },
    also_right=[
        "return rate * sent / (speed * operations) => return int(rate / speed * sent / operations)",
        "(1 if zigzag else 2) => 2 / (1 + zigzag)",
    ],
)
