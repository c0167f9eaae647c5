"""Exercises of page `experts`: choices, room, balance, the ways of rows, what is averaged."""

import itertools

import torch
from torch import Tensor, distributed

from mpcourse.exercises.exercise import Exercise, NotYet, borrowed, numbers, refuse, same, short
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import Mixture, ParallelMixture, average_gradients
from mpcourse.transformer.parallel_experts import Exchange

WAIT_S = 5.0  # for ranks that do not send the same messages
SAME_MESSAGES = "Do all ranks send the same messages, in one order?"

# 1. Which experts, and how much of each?

NO_GRADIENT = "The weights have no gradient: the router would never learn."
TWO_TENSORS = "Return two tensors (N, k): the weights, and which experts."
WEIGHTS_FIRST = "The weights come first, then the experts."
WHOLE = "Experts' numbers are whole numbers: others pick no expert."
KEEP = (
    "Both are (N, k), and each token has a sum of its own: divide (N, k) by (N, 1), which "
    "`keepdim=True` gives."
)


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
    found = attempt(leaf * 1, k)
    two = isinstance(found, tuple | list) and len(found) == 2
    if not two or not all(isinstance(each, Tensor) for each in found):
        raise NotYet(f"got {short(found)}", TWO_TENSORS)
    weights, chosen = found
    if weights.shape != (len(leaf), k) or chosen.shape != (len(leaf), k):
        shapes = f"got the shapes {tuple(weights.shape)} and {tuple(chosen.shape)}"
        raise NotYet(shapes, KEEP if weights.shape == 2 * (len(leaf),) else TWO_TENSORS)
    if chosen.is_floating_point():
        swapped = not weights.is_floating_point()
        raise NotYet(f"got {short(list(found))}", WEIGHTS_FIRST if swapped else WHOLE)
    if not weights.requires_grad:
        raise NotYet(f"got {short(list(found))}", NO_GRADIENT)
    order = torch.arange(1.0, weights.numel() + 1).view_as(weights)
    (gradient,) = torch.autograd.grad((weights * order).sum(), leaf)
    return weights.detach().to(leaf), chosen.long(), gradient  # any dtype will do


def nearly(outcome, expected):
    """A sum to which somebody adds 1e-9, against a division by 0, is right as well."""
    pairs = zip(outcome, expected, strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in pairs)


def weights_in_words(outcome, expected):
    (weights, chosen, gradient), (right, who, wanted) = outcome, expected
    if torch.allclose(weights, right, atol=1e-5) and torch.equal(chosen, who):
        same = f"the first token's gradient should be {short(wanted[0].tolist())}"
        return ["Weights and choices are right.", f"{same}, is {short(gradient[0].tolist())}"]
    lines = [f"expected weights {short(right.tolist())} of experts {short(who.tolist())}"]
    return [*lines, f"got {short(weights.tolist())} of experts {short(chosen.tolist())}"]


def by_loops(probabilities, k):
    rows = []
    for row in probabilities:
        best = sorted(range(len(row)), key=lambda e: -row[e].item())[:k]
        total = sum(row[e] for e in best) if k > 1 else 1
        rows.append((torch.stack([row[e] / total for e in best]), torch.tensor(best)))
    return torch.stack([w for w, _ in rows]), torch.stack([c for _, c in rows])


TABLE = torch.tensor([[0.1, 0.6, 0.29, 0.01], [0.2, 0.1, 0.3, 0.4], [0.06, 0.04, 0.7, 0.2]])

check_choose = Exercise(
    my_choose,
    read_again='"Who gets a token, and who gets a gradient?"',
    cases=[(TABLE[:1], 2), (TABLE, 1), (TABLE, 2), (TABLE, 4)],
    given=lambda table, k: f"probabilities {short(table.tolist())} and k = {k}",
    play=with_gradient,
    same=nearly,
    compared=weights_in_words,
    hint="The k largest of each row; several are divided by their sum, one alone stays.",
    wrong={
        "With k > 1 the weights of a token sum to 1: divide by the sum of the chosen ones, not of "
        "all experts.": [
            "/ weights.sum(dim=-1, keepdim=True) => ",
            "/ weights.sum(dim=-1, keepdim=True) => .double()",
            "/ weights.sum => / probabilities.sum",
            "/ weights.sum(dim=-1, keepdim=True) => / k",
        ],
        "With k = 1 the weight is divided by itself: it is always 1, and the router learns "
        "nothing.": "k > 1 => k",
        "These are probabilities already: divide by their sum, without a softmax.": [
            ("k > 1 => k", "/ weights.sum(dim=-1, keepdim=True) => .softmax(-1)"),
            "/ weights.sum(dim=-1, keepdim=True) => .softmax(-1)",
        ],
        "All weights are the same: the router's numbers are lost.": (
            "/ weights.sum(dim=-1, keepdim=True) => * 0 + 1 / k"
        ),
        "The likeliest comes first.": [
            "return weights, chosen => return weights.flip(-1), chosen.flip(-1)",
            "return weights, chosen => "
            "chosen, order = chosen.sort(); return weights.gather(1, order), chosen",
        ],
        "The sum has lost its gradient: divide by it without `detach()`.": (
            "/ weights => / weights.detach()"
        ),
        NO_GRADIENT: [
            "return weights => return weights.detach()",
            "return weights => return torch.tensor(weights.tolist())",
        ],
        "The sum is one token's, over its k weights: dim=-1.": "dim=-1, keepdim=True => dim=0",
        KEEP: [", keepdim=True => ", (", keepdim=True => ", "k > 1 => k")],
        WEIGHTS_FIRST: "return weights, chosen => return chosen, weights",
        WHOLE: "return weights, chosen => return weights, chosen.double()",
        TWO_TENSORS: ["return weights, => return", "return weights => return probabilities"],
    },
    errors={
        "size of tensor": KEEP,
        "out of bounds": "`probabilities[chosen]` picks tokens: say `gather(1, chosen)`.",
    },
    also_right=[
        "topk(k, dim=-1) => sort(descending=True); weights, chosen = weights[:, :k], chosen[:, :k]",
        by_loops,
        (".topk => .double().topk", "return weights, chosen => return weights, chosen.int()"),
        "weights / weights.sum(dim=-1, keepdim=True) => "
        "torch.nn.functional.normalize(weights, p=1)",
        "/ weights.sum(dim=-1, keepdim=True) => .log().softmax(-1)",
        "keepdim=True) => keepdim=True).add(1e-9)",
    ],
)

# 2. Which tokens stay?

EACH_CHOICE = "Return one boolean for each choice, in the shape of `chosen`, (N, k)."
BOOLEAN = "Numbers pick places where booleans pick what stays: compare, and return booleans."
TURNED = "That has the shape (k, N): transpose it back."


def my_within_capacity(chosen, experts, capacity):
    """All first choices stand in line before all second ones, and tokens in their order.

    The transpose puts them into that order. A running count tells the place of each in the line of
    its own expert.
    """
    asked = chosen.T.flatten()[:, None] == torch.arange(experts)
    place = (asked.cumsum(0) * asked).sum(1)  # from 1
    return (place <= capacity).view(chosen.T.shape).T


def of_each_choice(attempt, chosen, experts, capacity):
    found = attempt(chosen, experts, capacity)
    alike = isinstance(found, list | tuple) or hasattr(found, "__array__")  # numpy's will do
    kept = torch.as_tensor(found) if alike else found
    if not isinstance(kept, Tensor) or kept.shape != chosen.shape:
        turned = isinstance(kept, Tensor) and kept.shape == chosen.T.shape
        raise NotYet(f"got {short(found)}", TURNED if turned else EACH_CHOICE)
    if kept.dtype != torch.bool:
        raise NotYet(f"got {short(kept)}", BOOLEAN)
    return kept


def by_counting(chosen, experts, capacity):
    kept, taken = torch.zeros_like(chosen, dtype=torch.bool), [0] * experts
    for place in range(chosen.shape[1]):
        for token, expert in enumerate(chosen[:, place].tolist()):
            kept[token, place] = taken[expert] < capacity
            taken[expert] += 1
    return kept


CHOICES = torch.tensor([[0, 1], [0, 2], [1, 0], [2, 0], [0, 1], [0, 2]])

check_within_capacity = Exercise(
    my_within_capacity,
    read_again='"What if all want the same expert?"',
    cases=[
        (torch.tensor([[0], [0], [1], [0]]), 2, 2),
        (torch.tensor([[1, 0], [0, 1], [0, 1]]), 2, 2),
        (CHOICES, 3, 3),
        (CHOICES, 4, 1),
    ],
    given=lambda chosen, experts, capacity: (
        f"choices {short(chosen.tolist())} of {experts} experts, capacity {capacity}"
    ),
    play=of_each_choice,
    compared=lambda outcome, expected: [
        f"{name} {short(each.int().tolist())}"
        for name, each in (("expected", expected), ("got", outcome))
    ],
    hint="How many choices of the same expert stand before this one in the line?",
    wrong={
        "A second choice was served before another token's first: all first choices come first.": (
            "chosen.T => chosen",
            "shape).T => shape)",
        ),
        "One too few: `capacity` choices find room.": "<= => <",
        "One too many: only `capacity` choices find room.": "<= capacity => <= capacity + 1",
        "Each expert serves its line from the front: the last ones are dropped.": (
            "chosen.T.flatten => chosen.flip(0).T.flatten",
            "shape).T => shape).T.flip(0)",
        ),
        "An expert has one room for first and second choices together.": lambda chosen, *given: (
            torch.cat([my_within_capacity(each, *given) for each in chosen.split(1, dim=1)], 1)
        ),
        "`capacity` is the room of each expert, not of all together.": [
            "asked = => asked = 0 *",
            ("asked = => asked = 0 *", "<= capacity => <= capacity * experts"),
        ],
        "Each choice stays or goes alone: a token may lose one expert and keep the other.": (
            "shape).T => shape).T.all(1, keepdim=True).expand(chosen.shape)"
        ),
        "An expert that too many ask for still serves the first `capacity` of them.": (
            "asked.cumsum(0) => asked.sum(0)"
        ),
        "True is for a choice that finds room.": "<= => >",
        BOOLEAN: "shape).T => shape).T.int()",
        TURNED: "shape).T => shape)",
        "`view` does not turn a table: view the line as (k, N), then transpose.": (
            "view(chosen.T.shape).T => view(chosen.shape)"
        ),
        EACH_CHOICE: [
            ("(asked.cumsum(0) * asked).sum(1) => asked.cumsum(0)", ".view(chosen.T.shape).T => "),
            ".view(chosen.T.shape).T => ",
        ],
        "How many choices of the same expert": lambda chosen, *_: chosen >= 0,
    },
    also_right=[by_counting, "shape).T => shape).T.tolist()", "shape).T => shape).T.numpy()"],
)

# 3. A loss that is lowest when the load is even


def my_balance_loss(probabilities, chosen):
    """The share of choices of each expert times its mean probability, summed, times the experts.

    The shares are counts: they have no gradient, and work as constants. The gradient flows through
    the mean probabilities, and presses most on those of the busiest expert.
    """
    experts = probabilities.shape[1]
    share = chosen.flatten().bincount(minlength=experts) / chosen.numel()
    return experts * (share * probabilities.mean(dim=0)).sum()


OVER_TOKENS = "One mean for each expert: over the tokens, the rows, not over the experts."
MEAN_OF_ALL = "`mean()` without a dim is one number for all experts: over the tokens is dim=0."
NOBODY = "An expert that nobody chose has a count, too, 0: see `minlength`."
ONE_DTYPE = "Counts are whole numbers: divide them, or take `.float()`, before the product."


def loss_and_gradient(attempt, probabilities, chosen):
    leaf = probabilities.clone().requires_grad_()
    loss = attempt(leaf * 1, chosen)
    if not isinstance(loss, Tensor) or loss.dim():
        raise NotYet(f"got {short(loss)}", "Return one number, as a tensor: it needs a gradient.")
    if not loss.requires_grad:
        return loss.detach().to(leaf), torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach().to(leaf), gradient


def loss_in_words(outcome, expected):
    (loss, gradient), (right, wanted) = outcome, expected
    if abs(loss - right) > 1e-6:
        return [f"expected {short(float(right))}", f"got {short(float(loss))}"]
    rows = [short(each[0].tolist()) for each in (wanted, gradient)]
    return ["The value is right.", f"The first token's gradient should be {rows[0]}, is {rows[1]}"]


def by_expert(p, c):
    parts = [(c == e).sum() / c.numel() * p[:, e].mean() for e in range(p.shape[1])]
    return torch.stack(parts).mean() * len(parts) ** 2


check_balance = Exercise(
    my_balance_loss,
    read_again='"Who keeps the load even?"',
    cases=[
        (TABLE, torch.tensor([[1], [0], [1]])),
        (TABLE, torch.tensor([[1], [3], [2]])),
        (TABLE, torch.tensor([[1, 2], [3, 2], [2, 3]])),
    ],
    given=lambda p, c: f"probabilities {short(p.tolist())} and choices {short(c.tolist())}",
    play=loss_and_gradient,
    compared=loss_in_words,
    hint="experts * sum over experts of (share of the choices * mean probability).",
    wrong={
        "The gradient flows nowhere: counts have none. One of the two factors has to be the mean "
        "probability, with its gradient.": [
            "probabilities.mean(dim=0) => share",
            "probabilities.mean => probabilities.detach().mean",
        ],
        "The factor is missing: an even load would give 1 over the number of experts.": [
            "return experts * => return",
            ("return experts * => return", ".mean => .double().mean"),
        ],
        "Where are the choices? These are probabilities alone.": (
            "share * => probabilities.mean(dim=0) *"
        ),
        "Take the mean of the probabilities over the tokens, not their sum.": "mean(dim => sum(dim",
        "A share is of all choices, so that shares sum to 1: with k choices a token there are "
        "N k.": "chosen.numel() => len(chosen)",
        "Counts are no shares: divide by the number of choices.": " / chosen.numel() => ",
        "The product is taken expert by expert, and summed over them; here it is their mean.": (
            "return experts * => return 1 / experts *"
        ),
        "The sum over experts comes after the product, not before.": (
            "(share * probabilities.mean(dim=0)) => share.sum() * probabilities.mean(dim=0)"
        ),
        "The sign: this would reward the busiest expert.": "return experts => return -experts",
        "Return one number, as a tensor: it needs a gradient.": [
            ".sum() => .sum().item()",
            ".sum() => .sum().reshape(1)",
            ".sum() => ",
        ],
        "The factor is the number of experts, the columns of the probabilities; not all have been "
        "chosen.": [
            "return experts => return (chosen.max() + 1)",
            "return experts => return len(probabilities)",
            "return experts => return chosen.shape[1]",
        ],
        "The mean is over all tokens, not only over those that chose the expert.": (
            ".mean => .scatter(1, chosen, 0).sub(probabilities).neg().mean"
        ),
        "These are probabilities already: no softmax.": ".mean => .softmax(-1).mean",
        OVER_TOKENS: "dim=0 => dim=1",
        MEAN_OF_ALL: "mean(dim=0) => mean()",
        "The share counts `chosen`, which may differ from the likeliest.": (
            "share = => chosen = probabilities.argmax(-1); share ="
        ),
        "All k choices of a token count, not the first alone.": (
            "share = => chosen = chosen[:, :1]; share ="
        ),
        ONE_DTYPE: (
            " / chosen.numel() => ",
            "(share * probabilities.mean(dim=0)).sum() => share @ probabilities.mean(dim=0)",
        ),
        NOBODY: [
            "minlength=experts => ",
            "chosen.flatten().bincount(minlength=experts) => chosen.unique(return_counts=True)[1]",
        ],
        "That is how far the counts are apart, and has no gradient: sum the products.": [
            "experts * (share * probabilities.mean(dim=0)).sum() => share.var()",
            "experts * (share * probabilities.mean(dim=0)) => (share - 1 / experts).square()",
        ],
        "share of the choices * mean probability": ".sum() => .sum() + 1",
    },
    # the first case has 3 tokens, of 2 experts
    errors={r"size of tensor.*\(3\)": OVER_TOKENS, "size of tensor": NOBODY, "dtype": ONE_DTYPE},
    also_right=[
        "chosen.flatten().bincount(minlength=experts) / chosen.numel() => "
        "torch.nn.functional.one_hot(chosen, experts).double().mean(dim=(0, 1))",
        by_expert,
        "(share * probabilities.mean(dim=0)).sum() => (share @ probabilities.mean(dim=0))",
    ],
)

# 4. Counts to split sizes

UNEVEN = "That order holds for equal loads only: the counts say how many rows each expert got."
SPLIT_LISTS = "`all_to_all_single` takes splits as lists of whole numbers: see `tolist()`."
THREE_THINGS = "Return three: send and receive, a number for each rank, and the order of the rows."


def my_splits(mine, coming):
    """Sums over the experts of a rank give the sizes; the order sorts rows by their expert.

    Rows come by rank, and of each rank by expert. So the names of the experts repeat for each rank,
    each as often as it has rows. A stable sort of the names puts the rows of one expert side by
    side.
    """
    ranks, own = coming.shape
    send = mine.view(ranks, own).sum(dim=1).tolist()
    receive = coming.sum(dim=1).tolist()
    names = torch.arange(own).repeat(ranks).repeat_interleave(coming.flatten())
    return send, receive, names.argsort(stable=True)


def three_numbers(attempt, mine, coming):
    found = attempt(mine, coming)
    if isinstance(found, tuple | list) and any(isinstance(each, Tensor) for each in found[:2]):
        raise NotYet(f"got {short([*found])}", SPLIT_LISTS)
    found = numbers(found)
    if not isinstance(found, list) or len(found) != 3:
        raise NotYet(f"got {short(found)}", THREE_THINGS)
    return found


def with_lists(mine, coming):
    ranks, own = coming.shape
    send = [sum(mine[r * own : (r + 1) * own].tolist()) for r in range(ranks)]
    starts = [0, *coming.flatten().cumsum(0).tolist()]
    places = [[*range(a, b)] for a, b in itertools.pairwise(starts)]
    order = [place for e in range(own) for r in range(ranks) for place in places[r * own + e]]
    return tuple(send), [int(row.sum()) for row in coming], order


check_splits = Exercise(
    my_splits,
    read_again='"Rows travel"',
    cases=[
        (torch.tensor([3, 1]), torch.tensor([[3], [2]])),
        # from here on the order is not its own inverse
        (torch.tensor([1, 2, 0, 4]), torch.tensor([[1, 2], [1, 1]])),
        (torch.tensor([0, 2, 1, 1, 0, 3]), torch.tensor([[0, 2], [1, 4], [1, 0]])),
        (torch.tensor([0, 0, 9, 0, 0, 0]), torch.tensor([[6, 0, 9], [7, 0, 8]])),
    ],
    given=lambda mine, coming: f"mine {short(mine.tolist())} and coming {short(coming.tolist())}",
    play=three_numbers,
    hint="Experts of a rank stand side by side in `mine`; rows come by rank, then by expert; a "
    "sort leaves an expert's rows in the order of coming if it is `stable=True`.",
    wrong={
        "Send and receive are the wrong way round: `mine` is what leaves.": (
            "return send, receive => return receive, send"
        ),
        "A split has a number for each rank: add up the experts that it holds.": [
            "coming.sum(dim=1) => coming.flatten()",
            "mine.view(ranks, own).sum(dim=1) => mine",
            ("own).sum(dim=1) => own)", "coming.sum(dim=1) => coming"),
            "sum(dim=1).tolist() => sum().item()",
        ],
        "That adds up over the ranks, not over the experts of a rank.": [
            "coming.sum(dim=1) => coming.sum(dim=0)",
            "own).sum(dim=1) => own).sum(dim=0)",
        ],
        "Rank 0 holds the first experts: a row of `mine.view(ranks, own)` is one rank's.": (
            "view(ranks, own).sum(dim=1) => view(own, ranks).sum(dim=0)"
        ),
        "The rows stay in the order in which they came: by rank. An expert needs its rows side by "
        "side.": "names.argsort(stable=True) => torch.arange(len(names))",
        "`coming` counts the rows that are put in order; `mine` counts those that leave.": (
            "torch.arange(own).repeat(ranks).repeat_interleave(coming.flatten()) => "
            "torch.arange(len(mine)).repeat_interleave(mine)"
        ),
        UNEVEN: (
            "names.argsort(stable=True) => "
            "torch.arange(len(names)).view(ranks, own, -1).transpose(0, 1).flatten()"
        ),
        "That is the way back: row `order[i]` of what came is the i-th that the experts take.": (
            "names.argsort(stable=True) => names.argsort(stable=True).argsort()"
        ),
        "`coming` is read by columns here: rows come by rank, and of each rank by expert.": (
            "coming.flatten() => coming.T.flatten()"
        ),
        "These are names of experts in order; the order is where their rows stand.": (
            "names.argsort(stable=True) => names.sort().values"
        ),
        SPLIT_LISTS: "own).sum(dim=1).tolist() => own).sum(dim=1)",
        THREE_THINGS: ", names.argsort(stable=True) => ",
        "Experts of a rank stand": lambda mine, coming: [[0], [0], [0]],
    },
    errors={"shape .* is invalid": UNEVEN},
    also_right=[with_lists],
)

# 5. Dispatch, work, combine

splits = my_splits  # as the page calls it
SIZES = "An exchange here has the sizes of `splits`: send and receive there, receive and send home."
SORTED = "An expert takes its rows side by side: put what came into the order of `splits`."
BY_EXPERT = "The sizes for the experts are sums over the ranks: `coming.sum(dim=0)`."
COME_HOME = "One result for each of `rows`: results have to go back to the ranks of their rows."
NOT_ALONE = "The gradient has been cut: rows, results and experts all need theirs."


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


def over_ranks(attempt, loads):
    """Of each rank: the results, and the gradients of its rows and experts."""
    ranks, experts = loads.shape

    def program(group):
        rank, here = group.rank(), experts // ranks
        mine, coming = loads[rank], loads[:, rank * here : (rank + 1) * here]
        first = int(loads[:rank].sum()) + 1  # rows are numbered through
        rows = torch.arange(first, first + int(mine.sum())).double()[:, None].requires_grad_()
        factors = 10.0 ** torch.arange(rank * here, (rank + 1) * here).double()
        factors.requires_grad_()
        own = [lambda rows, e=e: rows * factors[e] for e in range(here)]
        sizes = [mine.view(ranks, here).sum(1).tolist(), coming.sum(1).tolist()]

        def exchange(rows, send, receive):
            if numbers([send, receive]) not in (sizes, sizes[::-1]) or sum(send) != len(rows):
                told = f"rank {rank} exchanged {len(rows)} rows, send {send}, receive {receive}"
                raise NotYet(told, SIZES)
            return Exchange.apply(rows, numbers(send), numbers(receive), group)

        found = attempt(rows * 1, mine.clone(), coming.clone(), own, exchange)
        if not isinstance(found, Tensor) or found.shape != rows.shape:
            raise NotYet(f"rank {rank} got {short(found)}", COME_HOME if mine.sum() else "")
        loss = (found * rows.detach().sqrt()).sum()
        gradients = torch.zeros_like(rows), torch.zeros_like(factors)
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, (rows, factors), materialize_grads=True)
        return found.detach(), *gradients

    return ranks_in_threads(program, ranks, timeout_s=WAIT_S)


def travel_in_words(outcome, expected):
    for rank, (found, right) in enumerate(zip(outcome, expected, strict=True)):
        if not same(found[0], right[0]):
            wanted, got = (short(each[0].flatten().tolist()) for each in (right, found))
            return [f"rank {rank}: expected {wanted}", f"got {got}"]
    return ["All results are right; gradients are not."]


def by_masks(rows, mine, coming, own, exchange):
    arrived = exchange(rows, *splits(mine, coming)[:2])
    names = torch.tensor(
        [e for row in coming.tolist() for e, n in enumerate(row) for _ in range(n)]
    )
    done = torch.zeros_like(arrived)
    for number, expert in enumerate(own):
        done[names == number] = expert(arrived[names == number])
    return exchange(done, coming.sum(1).tolist(), mine.view(len(coming), -1).sum(1).tolist())


check_travel = Exercise(
    my_travel,
    read_again='"Rows travel"',
    cases=[
        (torch.tensor([[1, 2, 0, 1], [1, 1, 2, 0]]),),  # then a rank sends none, and one gets none
        (torch.tensor([[0, 1, 3, 1, 0, 0], [0, 0, 0, 0, 0, 0], [2, 1, 0, 2, 0, 0]]),),
    ],
    given=lambda loads: (
        f"{len(loads)} ranks with `mine` {loads.tolist()}, rows 1, 2, 3 …, and experts that "
        "multiply by 1, 10, 100 …"
    ),
    play=over_ranks,
    compared=travel_in_words,
    hint="Exchange, put in order, let each expert work, undo the order, exchange back.",
    wrong={
        "Results go home in the order in which their rows came: undo the order first.": (
            "done[order.argsort()] => done"
        ),
        "`order` sorts, and `order.argsort()` undoes it. The two are equal only by luck, or where "
        "a rank has one expert.": "order.argsort() => order",
        SORTED: [
            "send, receive)[order] => send, receive)",
            ("send, receive)[order] => send, receive)", "done[order.argsort()] => done"),
            (
                ")[order] => )",
                "done[order.argsort()] => done",
                "coming.sum(dim=0) => coming.sum(dim=1)",
            ),
            "send, receive)[order] => send, receive)[order.argsort()]",
        ],
        BY_EXPERT: "coming.sum(dim=0) => mine",
        "`receive` counts by rank; an expert's rows are from all ranks: `coming.sum(dim=0)`.": [
            "coming.sum(dim=0) => coming.sum(dim=1)",
            "parts = arrived.split(coming.sum(dim=0).tolist()) => parts = arrived.chunk(len(own))",
        ],
        "Each expert works on its own part alone, not on all rows.": (
            "torch.cat([expert(part) for expert, part in zip(own, parts, strict=True)]) => "
            "sum(expert(arrived) for expert in own)"
        ),
        COME_HOME: "exchange(done[order.argsort()], receive, send) => done[order.argsort()]",
        SIZES: [
            "receive, send) => send, receive)",
            "exchange(rows, send, receive) => exchange(rows, receive, send)",
            "exchange(rows, send, receive) => exchange(rows, mine.tolist(), receive)",
        ],
        NOT_ALONE: [
            "exchange(rows => exchange(rows.detach()",
            "[expert(part) => [expert(part.detach())",
            "return exchange(done => return exchange(done.detach()",
        ],
        SAME_MESSAGES: (
            "return exchange(done[order.argsort()], receive, send) => "
            "return exchange(done[order.argsort()], receive, send) if len(rows) else rows"
        ),
    },
    errors={
        "split_with_sizes|is longer than|is shorter than": BY_EXPERT,
        "Timed out|had not returned|gloo": SAME_MESSAGES,
    },
    also_right=[
        by_masks,
        "return exchange(done[order.argsort()] => "
        "back = torch.empty_like(done); back[order] = done; return exchange(back",
        "(own, parts, strict=True) => (own, parts)",
    ],
)

# 6. A program that trains, and is wrong

GROUP = "These groups know no ranks outside themselves: say group=group."
WHICH = "`in` compares numbers of tensors: ask `is`, or for names that start with `experts.`."
GRADIENTS = "A parameter is a number that is learnt; what is divided and sent is its `.grad`."


def my_average(part, group, copies):
    """The router is one on all ranks, so its gradient is averaged over `group` and over `copies`.

    What comes back by the all-to-alls has added up, for each expert, the gradients of the losses of
    all ranks of `group`: there nothing is sent. The same expert in another copy has seen other
    tokens: over `copies` it is added up. The loss is the mean over all ranks: divide by both sizes.
    """
    for parameter in part.parameters():
        parameter.grad /= group.size() * copies.size()
        distributed.all_reduce(parameter.grad, group=copies)
    distributed.all_reduce(part.router.weight.grad, group=group)


def gradients_after(averages, copies, ranks):
    """What the gradients of a mixture with two experts a rank are, once they are averaged."""
    draw = torch.Generator().manual_seed(ranks)
    whole = Mixture(3, 4, 2 * ranks).double()
    for parameter in whole.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw).double()
    tokens = torch.randn(copies, ranks, 9, 3, generator=draw).double()

    def program(copies, group):
        part = ParallelMixture.of(whole, group)
        part(tokens[copies.rank(), group.rank()]).square().mean().backward()
        averages(part, group, copies)
        experts = torch.cat([p.grad.flatten() for p in part.experts.parameters()])
        return part.router.weight.grad.flatten(), experts

    return ranks_in_threads(program, (copies, ranks), timeout_s=WAIT_S)


def gradients_by_rank(attempt, words, copies, ranks):
    found = gradients_after(attempt, copies, ranks)
    if names := borrowed(attempt, {"average_gradients"}):
        if same(found, gradients_after(average_gradients, copies, ranks)):
            refuse(names, "divide, and send, with your own lines.")
    return found


def gradients_in_words(outcome, expected):
    lines = []
    for place, name in enumerate(("the router", "rank 0's experts")):
        wanted, found = expected[0][place], outcome[0][place]
        near = torch.allclose(found, wanted, rtol=1e-6, atol=1e-9)
        ratio = float(found.norm() / wanted.norm())
        lines.append(f"{name}: {'right' if near else f'wrong, {ratio:.3g} times the right size'}")
    return lines


def averaged(router, experts):
    """What happens to each kind: a pair of letters (over which groups summed, by which divided)."""

    def attempt(part, group, copies):
        over = {"g": group, "c": copies}
        for parameter in part.parameters():
            summed, divided = router if parameter is part.router.weight else experts
            for name in summed:
                distributed.all_reduce(parameter.grad, group=over[name])
            for name in divided:
                parameter.grad /= over[name].size()

    return attempt


RIGHT = ("gc", "gc")  # of the router; the experts' are ("c", "gc")


def by_numbers(part, group, copies):
    for parameter in part.parameters():
        over = copies if parameter in [*part.experts.parameters()] else group
        distributed.all_reduce(parameter.grad, group=over)


def by_name(part, group, copies):
    for name, parameter in part.named_parameters():
        for over in [copies] if name.startswith("experts.") else [group, copies]:
            distributed.all_reduce(parameter.grad, group=over)
        parameter.grad = parameter.grad / (group.size() * copies.size())


def in_one_message(part, group, copies):
    gradients = [parameter.grad for parameter in part.parameters()]
    distributed.all_reduce(part.router.weight.grad, group=group)
    flat = torch.cat([gradient.flatten() for gradient in gradients]) / group.size()
    distributed.all_reduce(flat, group=copies)
    pieces = (flat / copies.size()).split([gradient.numel() for gradient in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


check_average = Exercise(
    my_average,
    read_again='"Which gradients are averaged?"',
    cases=[("2 copies of four experts on 2 ranks", 2, 2), ("six experts on 3 ranks", 1, 3)],
    given="{0}",
    play=gradients_by_rank,
    compared=gradients_in_words,
    hint="Which ranks hold this parameter, and what has an expert's gradient been through?",
    correct="Router and experts have the gradients of one process.",
    wrong={
        "Rank 0's first expert is not rank 1's first expert: their gradients have nothing to do "
        "with one another.": [
            averaged(RIGHT, ("gc", "gc")),
            averaged(RIGHT, ("gc", "c")),
            averaged(RIGHT, ("g", "g")),
            averaged(RIGHT, ("g", "gc")),
            averaged(("g", "g"), ("g", "g")),
        ],
        "There may be another number of ranks than 4: group.size() and copies.size().": (
            "group.size() * copies.size() => 4"
        ),
        "The copies of an expert saw other tokens: without a message over `copies` they drift "
        "apart.": [averaged(RIGHT, ("", each)) for each in ("", "g", "gc")],
        "Nothing goes over `copies`: each copy trains a model of its own.": [
            averaged(("g", "g"), ("", "g")),
            lambda part, group, copies: average_gradients(part, group),
        ],
        "What an expert's gradient has been through is a sum over the losses of `group`; the loss "
        "is the mean of all ranks': divide by `group.size()`, too.": averaged(RIGHT, ("c", "c")),
        "That is the sum of the ranks' gradients; the loss is their mean.": [
            averaged(("gc", ""), ("c", "")),
            averaged(("gc", ""), ("c", "gc")),
            averaged(("gc", "g"), ("c", "g")),
            averaged(("gc", "c"), ("c", "c")),
        ],
        "The router is the same on all ranks and has seen this rank's tokens only: over both "
        "groups.": [
            averaged(("", ""), ("", "")),
            averaged(("", "gc"), ("c", "gc")),
            averaged(("c", "c"), ("c", "c")),
            averaged(("c", "gc"), ("c", "gc")),
            averaged(("g", "g"), ("c", "gc")),
            averaged(("g", "g"), ("c", "c")),
            averaged(("g", "gc"), ("c", "gc")),
            "weight.grad => weight.grad.clone()",
        ],
        "average_gradients did the work": lambda *given: average_gradients(*given),
        GRADIENTS: lambda part, *groups: [p.div_(2) for p in part.parameters()],
        WHICH: by_numbers,
        GROUP: ", group=group => ",
        SAME_MESSAGES: lambda part, *groups: groups[0].rank() == 0 and my_average(part, *groups),
    },
    errors={
        "process group has not been|is not registered": GROUP,
        "Boolean value|size of tensor": WHICH,
        "leaf Variable|'Linear' object has no attribute 'grad'": GRADIENTS,
        "Timed out|had not returned|gloo": SAME_MESSAGES,
    },
    also_right=[averaged(RIGHT, ("c", "gc")), by_name, in_one_message],
)
