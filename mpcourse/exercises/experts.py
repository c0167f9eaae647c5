"""Exercises of page `experts`: choices, balance, the way of rows, what is averaged."""

import torch
from torch import Tensor, distributed

from mpcourse.exercises.exercise import Exercise, NotYet, borrowed, numbers, refuse, same, short
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import Mixture, ParallelMixture
from mpcourse.transformer.parallel_experts import Exchange

SAME_MESSAGES = (
    "Do all ranks send the same messages, in one order? An expert without tokens has a gradient of "
    "zeros: its rank sends it all the same."
)
TABLE = torch.tensor([[0.1, 0.6, 0.29, 0.01], [0.2, 0.1, 0.3, 0.4], [0.06, 0.04, 0.7, 0.2]])

# 1. Which experts, and how much of each?

NO_GRADIENT = "The weights have no gradient: the router would never learn."
TWO_TENSORS = "Return two tensors (N, k): the weights, then the experts' numbers, which are whole."
DRAWN = "Nothing is drawn by chance: each token goes to its k likeliest experts."
ALONG_ROWS = "A row is a token: its likeliest experts stand along `dim=-1`."
DIVIDED_BY_K = "weights.sum(dim=-1, keepdim=True) => k"
KEEP = "Each token has a sum of its own: divide (N, k) by (N, 1), which `keepdim=True` gives."


def my_choose(probabilities, k):
    """The k likeliest experts, and what they weigh: together 1.

    One alone keeps its probability. Divided by itself it would be 1 whatever the router says, and a
    constant has no gradient.
    """
    weights, chosen = probabilities.topk(k, dim=-1)
    if k > 1:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, chosen


def with_gradient(attempt, probabilities, k):
    """What is returned, and the gradient that comes through the weights."""
    leaf = probabilities.clone().requires_grad_()
    before = torch.get_rng_state()
    found = attempt(leaf * 1, k)
    if not torch.equal(before, torch.get_rng_state()):
        raise NotYet(f"got {short(found)}", DRAWN)
    two = found if isinstance(found, tuple | list) else []
    shapes = [getattr(each, "shape", None) for each in two]
    if shapes and shapes[0] == (len(leaf), len(leaf)) and k < len(leaf):
        raise NotYet(f"got {short(found)}", KEEP)
    if shapes != 2 * [(len(leaf), k)] or two[1].is_floating_point():
        raise NotYet(f"got {short(found)}", TWO_TENSORS)
    weights, chosen = found
    if not weights.requires_grad:
        raise NotYet(f"got {short(found)}", NO_GRADIENT)
    order = torch.arange(1.0, weights.numel() + 1).view_as(weights)
    (gradient,) = torch.autograd.grad((weights * order).sum(), leaf)
    return weights.detach().to(leaf), chosen.long(), gradient  # any dtype will do


check_choose = Exercise(
    my_choose,
    read_again='"Who gets a token, and who gets a gradient?"',
    cases=[(TABLE[:1].double(), 2), *((TABLE.double(), k) for k in (1, 2, 4))],
    given=lambda p, k: f"probabilities {short(p.tolist())}, k = {k}: weights, experts, gradient",
    play=with_gradient,
    same=lambda a, b: all(torch.allclose(*pair, atol=1e-5) for pair in zip(a, b, strict=True)),
    hint="The k largest of each row; several are divided by their sum, one alone stays.",
    wrong={
        "With k > 1 the weights of a token sum to 1: divide by the sum of the chosen ones, not of "
        "all experts.": ["/ weights.sum(dim=-1, keepdim=True) => ", "/ weights => / probabilities"],
        "With k = 1 the weight is divided by itself: it is always 1, and the router learns "
        "nothing.": "k > 1 => k",
        "These are probabilities already: divide by their sum, without a softmax.": (
            "/ weights.sum(dim=-1, keepdim=True) => .softmax(-1)"
        ),
        "The likeliest comes first.": (
            "return weights, chosen => return weights.flip(-1), chosen.flip(-1)"
        ),
        NO_GRADIENT: "return weights => return weights.detach()",
        "Each token has its own sum, over its k experts: no sum over tokens.": [
            "sum(dim=-1, keepdim=True) => sum()",
            "sum(dim=-1, keepdim=True) => sum(dim=0, keepdim=True)",
        ],
        "Those are the least likely experts.": "topk(k, dim=-1) => topk(k, dim=-1, largest=False)",
        ALONG_ROWS: "topk(k, dim=-1) => topk(k, dim=0)",
        "Any k above 1 is divided, not 2 alone.": "k > 1 => k == 2",
        "The sum needs its gradient, too.": "keepdim=True) => keepdim=True).detach()",
        "The chosen probabilities need their gradient, too, and not their sum alone.": (
            "weights / weights => weights.detach() / weights"
        ),
        KEEP: [", keepdim=True => ", (", keepdim=True => ", "k > 1 => k")],
        "These weights do not sum to 1: divide by the sum of the chosen ones, not by k, the "
        "largest or the norm.": [
            "sum(dim=-1, keepdim=True) => amax(dim=-1, keepdim=True)",
            "sum(dim=-1, keepdim=True) => norm(dim=-1, keepdim=True)",
            DIVIDED_BY_K,
        ],
        "Experts are counted from 0.": "return weights, chosen => return weights, chosen + 1",
        "The likeliest comes first, not the expert with the lowest number.": (
            "if k > 1 => chosen = chosen.sort(dim=-1).values; "
            "weights = probabilities.gather(1, chosen)\n    if k > 1"
        ),
        DRAWN: (
            "weights, chosen = probabilities.topk(k, dim=-1) => "
            "chosen = probabilities.multinomial(k); weights = probabilities.gather(1, chosen)"
        ),
        TWO_TENSORS: "return weights, chosen => return chosen, weights",
    },
    errors={"size of tensor": KEEP, "out of range": ALONG_ROWS},
    also_right=[
        "keepdim=True) => keepdim=True).add(1e-9)",
        "topk(k, dim=-1) => sort(descending=True); weights, chosen = weights[:, :k], chosen[:, :k]",
    ],
)

# 2. A loss that is lowest when the load is even

OVER_TOKENS = "One mean for each expert: over the tokens, the rows, not over the experts."
NOBODY = "An expert that nobody chose has a count, too, 0: see `minlength`."
SHAZEER = (
    "That is an older balance loss, the squared coefficient of variation (Shazeer et al. 2017); "
    "this one is a product of f_e and P_e, added up over the experts."
)
ONE_NUMBER = "Return one number, as a tensor: it needs a gradient."
FLAT = "`bincount` counts in one line of numbers: flatten the choices (N, k) first."


def my_balance_loss(probabilities, chosen):
    """The share of choices of each expert times its mean probability, summed, times the experts.

    The shares are counts: they have no gradient, and work as constants. The gradient flows through
    the mean probabilities, and presses most on those of the busiest expert.
    """
    experts = probabilities.shape[1]
    share = chosen.flatten().bincount(minlength=experts) / chosen.numel()
    return experts * (share * probabilities.mean(dim=0)).sum()


def loss_and_gradient(attempt, probabilities, chosen):
    leaf = probabilities.clone().requires_grad_()
    loss = attempt(leaf * 1, chosen)
    if not isinstance(loss, Tensor) or loss.dim():
        raise NotYet(f"got {short(loss)}", ONE_NUMBER)
    (gradient,) = torch.autograd.grad(loss + 0 * leaf.sum(), leaf)
    return loss.detach().to(leaf), gradient


check_balance = Exercise(
    my_balance_loss,
    read_again='"Who keeps the load even?"',
    cases=[
        (TABLE, torch.tensor([[1], [0], [1]])),
        (TABLE, torch.tensor([[1], [3], [2]])),
        (TABLE, torch.tensor([[1, 2], [3, 2], [2, 3]])),
    ],
    given=lambda p, c: f"probabilities {short(p.tolist())}, choices {c.tolist()}: loss, gradient",
    play=loss_and_gradient,
    hint="experts * sum over experts of (share of the choices * mean probability).",
    wrong={
        "The gradient flows nowhere: counts have none, the mean probability has one.": [
            "probabilities.mean(dim=0) => share",
            "experts * (share * probabilities.mean(dim=0)) => ((share - 1 / experts) ** 2)",
            ".mean(dim=0) => .detach().mean(dim=0)",
        ],
        "An even load gives 1: the factor is missing, or a mean over the experts undoes it.": [
            "return experts * => return",
            ".sum() => .mean()",
        ],
        "The loss is high where the load is uneven, so that a step lowers it: no minus.": (
            "return experts => return -experts"
        ),
        "Count the experts in the shape of `probabilities`: the last may be chosen by nobody.": (
            "return experts => return (chosen.max() + 1)"
        ),
        "A share is a fraction: `//` makes it 0.": "/ chosen.numel() => // chosen.numel()",
        "Where are the choices? These are probabilities alone.": [
            f"share * => probabilities.mean(dim=0){cut} *" for cut in ("", ".detach()")
        ],
        "A share is of all choices, so that shares sum to 1: with k choices a token there are "
        "N k.": ["chosen.numel() => len(chosen)", " / chosen.numel() => "],
        "All choices of a token count, not the first alone.": (
            ("chosen.flatten() => chosen[:, 0]", "chosen.numel() => len(chosen)")
        ),
        "Count the choices that are handed in: these are the likeliest experts.": (
            ("chosen.flatten() => probabilities.argmax(dim=1)", "chosen.numel() => len(chosen)")
        ),
        "A share counts the choices that are handed in; a probability above 1 / E is no choice.": (
            "chosen.flatten().bincount(minlength=experts) / chosen.numel() => "
            "(probabilities > 1 / experts).float().mean(dim=0)"
        ),
        "An expert's probability is a mean over the tokens, no sum.": "mean(dim=0) => sum(dim=0)",
        "The probabilities are given: a softmax changes them.": ".mean => .softmax(dim=1).mean",
        SHAZEER: [
            f"experts * (share * probabilities.mean(dim=0)).sum() => {each}.var({which}) / {square}"
            for each, square in (
                ("probabilities.sum(dim=0)", "probabilities.sum(dim=0).mean() ** 2"),
                ("share", "share.mean() ** 2"),
            )
            for which in ("", "correction=0")
        ],
        "The mean is over all tokens, also those that chose other experts.": (
            "probabilities.mean => (probabilities * torch.eye(experts)[chosen].sum(dim=1)).mean"
        ),
        "Add up over the experts and multiply by their number; no mean over them.": (
            "return experts * (share * probabilities.mean(dim=0)).sum() => "
            "return (share * probabilities.mean(dim=0)).mean()"
        ),
        "P_e is the expert's probability over all tokens, not that of the choice made.": (
            "probabilities.mean => probabilities.gather(1, chosen).mean"
        ),
        "An even load gives 1, and not 0: nothing is subtracted.": ".sum() => .sum() - 1",
        "The factor 0.01 comes later, when the balance loss is added to the model's loss.": (
            "return experts => return 0.01 * experts"
        ),
        "The factor is the number of experts, once, and no number of tokens or choices.": [
            "return experts => return experts**2",
            "return experts => return len(probabilities)",
            "return experts => return chosen.numel()",
            "return experts => return 8",
        ],
        OVER_TOKENS: "dim=0 => dim=1",
        NOBODY: "minlength=experts => ",
        ONE_NUMBER: ".sum() => .sum().item()",
        FLAT: "chosen.flatten() => chosen",
    },
    # the first case has 3 tokens, of 2 experts
    errors={
        r"size of tensor.*\(8\)": "Here are not 8 experts: see the shape of `probabilities`.",
        r"size of tensor.*\(3\)": OVER_TOKENS,
        "size of tensor": NOBODY,
        "1-d": FLAT,
    },
    also_right=[
        "chosen.flatten().bincount(minlength=experts) / chosen.numel() => "
        "torch.nn.functional.one_hot(chosen, experts).double().mean(dim=(0, 1))",
        "(share * probabilities.mean(dim=0)).sum() => (share @ probabilities.mean(dim=0))",
    ],
)

# 3. Dispatch, work, combine

SIZES = (
    "An exchange has the sizes of `splits`, on the way home swapped; `order` sorts what arrives."
)
SEND_FIRST = "Send first: the first exchange takes `rows`; the experts work on what has arrived."
SKIP_NONE = (
    "An expert without rows takes its empty part all the same. If none of a rank's experts does, "
    "its results need no gradient: in the backward it sends nothing, and the other ranks wait."
)
THREE = "`exchange(rows, send, receive)` takes three, and knows the group."
MINE_FIRST = "`splits(mine, coming)`: first what this rank sends."
AS_LIST = "`split` takes a list of whole numbers, no tensor: see `tolist()`."
BY_EXPERT = "An expert's rows come from all ranks: its size is in `coming.sum(dim=0)`."
TAKE_PART = (
    "Do all ranks send the same messages, in one order? One without rows takes part too, also in "
    "the backward: what goes home has to be computed from what arrived."
)
NO_BACKWARD = "Use `exchange`: `all_to_all_single` has no backward, and needs the group."
TWICE = "Two exchanges do: the rows go to their experts, and the results come home, once each."
COME_HOME = (
    "One result for each of `rows`: undo `order`, then send them back to the ranks of their rows."
)


def splits(mine, coming):  # as the page has it
    ranks, own = coming.shape
    wanted = torch.arange(own).repeat(ranks).repeat_interleave(coming.flatten())  # of each row
    send, receive = mine.view(ranks, own).sum(1), coming.sum(1)
    return send.tolist(), receive.tolist(), wanted.argsort(stable=True)


def my_travel(rows, mine, coming, own, exchange):
    """What comes is put in order, worked on, put back into the order of coming, and sent home.

    The experts' parts are the sums of `coming` over the ranks. `order.argsort()` undoes `order`. On
    the way home, each rank sends as many rows as it received.
    """
    send, receive, order = splits(mine, coming)
    arrived = exchange(rows, send, receive)[order]
    parts = arrived.split(coming.sum(dim=0).tolist())
    done = torch.cat([expert(part) for expert, part in zip(own, parts, strict=True)])
    return exchange(done[order.argsort()], receive, send)


def over_ranks(attempt, loads, learnt_before=True):
    """Of each rank: the results, and the gradients of its rows and experts.

    learnt_before: Whether the rows need a gradient, for what has made them.
    """
    if borrowed(attempt, {"all_to_all_single"}):
        raise NotYet("all_to_all_single is called", NO_BACKWARD)
    loads = torch.tensor(loads)
    ranks, experts = loads.shape

    def program(group):
        rank, here = group.rank(), experts // ranks
        mine, coming = loads[rank], loads[:, rank * here : (rank + 1) * here]
        first = int(loads[:rank].sum()) + 1  # rows are numbered through
        rows = torch.arange(first, first + int(mine.sum())).double()[:, None]
        rows.requires_grad_(learnt_before)
        factors = 10.0 ** torch.arange(rank * here, (rank + 1) * here).double()
        factors.requires_grad_()
        own = [lambda rows, e=e: rows * factors[e] for e in range(here)]
        given, calls = rows.detach(), []  # did one take the rows as they are?
        sizes = [mine.view(ranks, here).sum(1).tolist(), coming.sum(1).tolist()]

        def exchange(rows, send, receive):
            calls.append(isinstance(rows, Tensor) and torch.equal(rows, given))
            if numbers([send, receive]) not in (sizes, sizes[::-1]) or sum(send) != len(rows):
                told = f"rank {rank} exchanged {len(rows)} rows, send {send}, receive {receive}"
                raise NotYet(told, SIZES if any(calls) else SEND_FIRST)
            return Exchange.apply(rows, numbers(send), numbers(receive), group)

        found = attempt(rows * 1, mine.clone(), coming.clone(), own, exchange)
        if not isinstance(found, Tensor) or found.shape != rows.shape:
            raise NotYet(f"rank {rank} got {short(found)}", COME_HOME if calls else SEND_FIRST)
        if len(calls) > 2:
            raise NotYet(f"rank {rank} called `exchange` {len(calls)} times", TWICE)
        if not learnt_before:
            lost = torch.tensor(float(not found.requires_grad))
            distributed.all_reduce(lost, group=group)  # all ranks stop, so that none has to wait
            if lost:
                raise NotYet("in the backward a rank has nothing to send", SKIP_NONE)
        loss = (found * rows.detach().sqrt()).sum() + 0 * rows.sum()
        leaves = (rows, factors) if learnt_before else (factors,)
        return found, *torch.autograd.grad(loss, leaves, materialize_grads=True)

    return ranks_in_threads(program, ranks, timeout_s=5.0)


check_travel = Exercise(
    my_travel,
    read_again='"Rows travel"',
    cases=[
        ([[1, 2, 0, 1], [1, 1, 2, 0]],),  # then a rank sends none, and one gets none
        ([[0, 1, 3, 1, 0, 0], [0, 0, 0, 0, 0, 0], [2, 1, 0, 2, 0, 0]],),
        ([[1, 0, 2, 1, 1, 2], [0, 2, 1, 3, 0, 1]],),  # three experts a rank
        ([[1, 2, 0, 0], [2, 0, 0, 0]], False),  # nothing goes to rank 1
    ],
    given=lambda mine, learnt_before=True: (
        f"ranks with `mine` {mine}, rows 1, 2, 3 …{'' if learnt_before else ' without gradient'}, "
        "experts that multiply by 1, 10, 100 …"
    ),
    play=over_ranks,
    hint="Exchange, put in order, let each expert work, undo the order, exchange back.",
    wrong={
        "Results go home in the order in which their rows came: undo the order first.": (
            "done[order.argsort()] => done"
        ),
        "`order` sorts, `order.argsort()` undoes it; the two may be equal by luck.": (
            "order.argsort() => order"
        ),
        "An expert takes its rows side by side: put what came into the order of `splits`.": (
            ("send, receive)[order] => send, receive)", "done[order.argsort()] => done")
        ),
        BY_EXPERT: "coming.sum(dim=0) => mine",
        AS_LIST: "coming.sum(dim=0).tolist() => coming.sum(dim=0)",
        COME_HOME: [
            "exchange(done[order.argsort()], receive, send) => done[order.argsort()]",
            "done[order.argsort()], receive, send) => done, receive, send)[order.argsort()]",
        ],
        SIZES: "receive, send) => send, receive)",
        "The results come home in the order of `rows`: nothing is left to sort.": [
            f"receive, send) => receive, send){order}" for order in ("[mine.argsort()]", ".flip(0)")
        ],
        SEND_FIRST: [
            (
                "arrived = exchange(rows, send, receive)[order] => sizes = numbers(mine)",
                "arrived.split(coming.sum(dim=0).tolist()) => rows.split(sizes)",
                ", strict=True => ",
                f"exchange(done[order.argsort()], {receive_and_send} => {instead}",
            )
            for receive_and_send, instead in (
                ("", "exchange(exchange(done, send, receive), "),
                ("receive, send)", "done"),
            )
        ],
        SKIP_NONE: (
            "done = torch.cat([expert(part) for expert, part in zip(own, parts, strict=True)]) => "
            "done = [expert(part) for expert, part in zip(own, parts, strict=True) if len(part)]; "
            "done = torch.cat(done) if done else arrived"
        ),
        TWICE: "arrived = => exchange(rows, send, receive); arrived =",
        NO_BACKWARD: "arrived = => distributed.all_to_all_single(rows, rows); arrived =",
        THREE: "send, receive)[order] => send, receive, None)[order]",
        MINE_FIRST: "splits(mine, coming) => splits(coming, mine)",
        "`own` are the experts of this rank alone, counted from 0.": (
            "[expert(part) for expert, part in zip(own, parts, strict=True)] => "
            "[own[e](part) for e, part in enumerate(rows.split(numbers(mine)))]"
        ),
        "The gradient has been cut: rows, results and experts all need theirs.": [
            "exchange(rows => exchange(rows.detach()",
            "exchange(done => exchange(done.detach()",
        ],
        "Each part is one expert's, and no rank's; parts are uneven: see `coming.sum(dim=0)`.": [
            "coming.sum(dim=0) => coming.sum(dim=1)",
            "split(coming.sum(dim=0).tolist()) => chunk(len(own))",
        ],
        "Each expert takes its own part: here some go through another one, or through none.": [
            "[expert(part) => [own[0](part)",
            "zip(own => zip(own[::-1]",
            "[expert(part) => [part",
            "[expert(part) => [sum(each(part) for each in own)",
            "[expert(part) => [own[1](own[0](part))",
        ],
        "Each row was worked on by its own rank: send it to the rank of its expert first.": (
            lambda rows, mine, coming, own, exchange: torch.cat(
                [own[i % len(own)](part) for i, part in enumerate(rows.split(mine.tolist()))]
            )
        ),
        "A rank may hold any number of experts: take each of `own`, whose length is not fixed.": (
            "zip(own, parts, strict=True) => zip(own[:2], (parts[0], torch.cat(parts[1:])))"
        ),
    },
    errors={
        "not Tensor": AS_LIST,
        r"exchange\(\).*positional argument": THREE,
        r"unpack \(expected 2, got 1": MINE_FIRST,
        "split_with_sizes|is longer than|is shorter than": BY_EXPERT,
        "list index": "`own` are the experts of this rank alone, counted from 0.",
        "out of bounds": COME_HOME,
        "non-empty list": SKIP_NONE,
        "Timed out|had not returned|gloo": TAKE_PART,
    },
    also_right=[
        "return exchange(done[order.argsort()] => "
        "back = torch.empty_like(done); back[order] = done; return exchange(back"
    ],
)

# 4. A program that trains, and is wrong

METHOD = "`size` is a method: write `group.size()`."
WEIGHT = "The router has no bias, and one parameter: `part.router.weight`, which has a `.grad`."
NO_SUM = "`all_reduce` adds up unless `op` says otherwise, and a mean needs the sum."
NO_NONE = "A `.grad` that is None is lost: put the mean of all ranks' gradients there."
RANKS = "Each rank needs the sum: `all_reduce` gives it, `broadcast` and `reduce` do not."
GROUP = "These groups know no ranks outside themselves: say group=group."


def my_average(part, group, copies):
    """The router is one on all ranks, so its gradient is averaged over `group` and over `copies`.

    The all-to-alls have added up an expert's gradients over `group`: there nothing is sent. The
    same expert in another copy has seen other tokens: over `copies` it is added up. The loss is the
    mean over all ranks: divide by both sizes.
    """
    for parameter in part.parameters():
        parameter.grad /= group.size() * copies.size()
        distributed.all_reduce(parameter.grad, group=copies)
    distributed.all_reduce(part.router.weight.grad, group=group)


def gradients_by_rank(attempt, words, copies, ranks, alike=False):
    """Of each rank, the gradients of router and experts of a mixture, two experts a rank."""
    if names := borrowed(attempt, {"average_gradients"}):
        refuse(names, "divide, and send, with your own lines.")
    draw = torch.Generator().manual_seed(ranks)
    whole = Mixture(3, 4, 2 * ranks).double()
    for parameter in whole.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw).double()
    tokens = torch.randn(copies, ranks, 9, 3, generator=draw).double()
    if alike:  # the last copy's tokens: all go to one expert
        tokens[-1] = tokens[-1, 0, 0].clone()

    def program(copies, group):
        part = ParallelMixture.of(whole, group)
        part(tokens[copies.rank(), group.rank()]).square().mean().backward()
        attempt(part, group, copies)
        experts = torch.cat([p.grad.flatten() for p in part.experts.parameters()])
        return part.router.weight.grad.flatten(), experts

    return ranks_in_threads(program, (copies, ranks), timeout_s=5.0)


ONE_RANK = (
    "The router's gradient is right at rank 0, but not at every rank: each divides and needs the "
    "sum. The experts' are not yet right."
)


def gradients_in_words(outcome, expected):
    pairs = zip(("router", "experts"), outcome[0], expected[0], strict=True)
    sizes = [(name, float(found.norm() / right.norm())) for name, found, right in pairs]
    return [f"rank 0's {name}: {size:.4g} times the right size" for name, size in sizes]


def part_that_is_off(outcome, expected):
    def off_at(rank):
        pairs = zip(("router", "experts"), outcome[rank], expected[rank], strict=True)
        return [name for name, found, right in pairs if not same(found, right)]

    off = off_at(0)
    if off == ["experts"] and any("router" in off_at(rank) for rank in range(1, len(outcome))):
        return ONE_RANK
    return {
        "": "Rank 0's gradients are right, another rank's are not: all ranks need the sum.",
        "router": "The experts' gradients are right; all ranks hold the router: take their mean.",
        "experts": "The router's is right. Which ranks hold an expert, and what have the gradients "
        "of its weights and biases been through?",
    }.get(" ".join(off), "Which ranks hold this parameter, and what has its gradient been through?")


DIVIDE = "parameter.grad /= group.size() * copies.size()"
SENT = "distributed.all_reduce(parameter.grad, group=copies)"
ROUTER = "distributed.all_reduce(part.router.weight.grad, group=group)"
BOTH = f"{ROUTER} => {ROUTER}; {ROUTER[:-6]}copies)"
OVER_COPIES = f"{ROUTER[:-6]}copies); part.router.weight.grad /= copies.size()"
MAX = "op=distributed.ReduceOp.MAX)"
UNDO = "[p.grad.mul_(copies.size()) for p in part.experts.parameters()]"

check_average = Exercise(
    my_average,
    read_again='"Which gradients are averaged?"',
    cases=[
        ("2 copies of four experts on 2 ranks", 2, 2),
        ("six experts on 3 ranks", 1, 3),
        ("2 copies of four experts on 2 ranks, one copy without tokens for three", 2, 2, True),
    ],
    given="{0}",
    play=gradients_by_rank,
    compared=gradients_in_words,
    hint=part_that_is_off,
    wrong={
        "Each `.grad` is as it was: write the result into it.": lambda part, group, copies: None,
        "The groups are exchanged: `copies` has the ranks that hold the same experts.": [
            (f"{SENT} => {SENT[:-7]}group)", f"{ROUTER} => {ROUTER[:-6]}copies)"),
            (" * copies.size() => ", f"{SENT} => {SENT[:-7]}group)", f"{ROUTER} => {OVER_COPIES}"),
        ],
        "Rank 0's first expert is not rank 1's first expert: their gradients have nothing to do "
        "with one another.": (f"{SENT} => {SENT}; {SENT[:-7]}group)", f"{ROUTER} => "),
        "The copies of an expert saw other tokens: without a message over `copies` they drift "
        "apart.": [(f"{SENT} => ", BOTH), (f"{SENT} => ", f"{BOTH}; {UNDO}")],
        "An expert's gradient is a sum over the losses of `group`; the loss is the mean of all "
        "ranks': divide by `group.size()`, too.": (
            "group.size() * copies.size() => copies.size()",
            f"{ROUTER} => {ROUTER}; part.router.weight.grad /= group.size()",
        ),
        "That is the sum of the ranks' gradients; the loss is their mean.": f"{DIVIDE} => ",
        "Divide by both sizes, `group.size()` and `copies.size()`: they may differ.": (
            "group.size() * copies.size() => copies.size() ** 2"
        ),
        "Divide once, by the sizes of both groups, which no fixed number knows.": [
            f"{DIVIDE} => parameter.grad /= 4",
            f"{DIVIDE} => {DIVIDE} * copies.size()",
        ],
        "The router is the same on all ranks and has seen this rank's tokens only: over both "
        "groups.": f"{ROUTER} => ",
        "Both groups count: the loss is the mean over group.size() * copies.size() ranks.": [
            " * copies.size() => ",
            "group.size() * copies.size() => copies.size()",
            (" * copies.size() => ", f"{SENT} => "),
            ("group.size() * copies.size() => copies.size()", f"{ROUTER} => "),
            (f"{DIVIDE} => ", f"{ROUTER} => {ROUTER}; part.router.weight.{DIVIDE[10:]}"),
        ],
        "The router is divided twice: add up over `group`, and divide by each size once.": (
            f"{ROUTER} => {ROUTER}; part.router.weight.grad /= group.size()"
        ),
        "An expert's gradient is added up over `group` only: divide, and add up over `copies`.": (
            (f"{DIVIDE} => pass", f"{SENT} => ", f"{BOTH}; part.router.weight.{DIVIDE[10:]}")
        ),
        ONE_RANK: (
            "group.size() * copies.size() => copies.size()",
            f"{ROUTER} => {ROUTER}; part.router.weight.grad /= 1 if group.rank() else group.size()",
        ),
        GROUP: ", group=group => ",
        NO_SUM: [f"{SENT} => {SENT[:-1]}, op=distributed.ReduceOp.{op})" for op in ("MAX", "MIN")]
        + [
            (f"{SENT} => {SENT[:-1]}, {MAX}", f"{ROUTER} => {ROUTER[:-1]}, {MAX}", *undivided)
            for undivided in ((), (f"{DIVIDE} => ",))
        ],
        NO_NONE: lambda part, group, copies: [
            setattr(parameter, "grad", None) for parameter in part.parameters()
        ],
        SAME_MESSAGES: f"{SENT} => if parameter.grad.any(): {SENT}",
        METHOD: "copies.size() => copies.size",
        WEIGHT: [f"router.weight => router{other}" for other in (".bias", "")],
        RANKS: f"{SENT} => distributed.broadcast(parameter.grad, 0, group=copies)",
    },
    errors={
        "is not registered": RANKS,
        "process group has not been": GROUP,
        "'method'": METHOD,
        "'(Linear|NoneType)' object has no attribute 'grad'": WEIGHT,
        "'NoneType' object has no attribute 'flatten'": NO_NONE,
        "leaf Variable": "Change each parameter's `.grad`, and not the parameter.",
        "Timed out|had not returned|gloo": SAME_MESSAGES,
    },
    also_right=[f"{DIVIDE} => parameter.grad = parameter.grad / (group.size() * copies.size())"],
)
