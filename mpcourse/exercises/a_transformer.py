"""Exercises of page `a_transformer`: mask, attention, decoder, its size, cache, tied copies."""

import inspect
import math
from functools import partial

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from mpcourse.devices.devices import usable_gpus
from mpcourse.exercises.exercise import (
    Exercise,
    NotAttempted,
    NotYet,
    expected_and_got,
    refuse_borrowed,
    same,
    short,
)
from mpcourse.transformer import Decoder

# 1. What a token sees


def my_causal_weights(scores):
    """Hide what comes after before the softmax, so that what is left sums to 1.

    exp(-inf) is 0, so a hidden token takes no part. Zeros put in after the softmax would leave rows
    that sum to less than 1, and a hidden score of 0 would still weigh exp(0) = 1.
    """
    ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, float("-inf")).softmax(dim=-1)


def table_of_scores(size, plus=0.0, in_front=()):
    chance = torch.Generator().manual_seed(size)
    return (torch.randn(*in_front, size, size, generator=chance, dtype=torch.double) + plus,)


def tensor_of(result):
    """Lists of rows will do; what is no tensor at all has no rows."""
    try:
        return torch.as_tensor(result).double()
    except (TypeError, ValueError, RuntimeError):
        return torch.empty(0)


def same_weights(result, expected):
    """Up to the rounding of float32, where nan is nan: a row without anything to see."""
    result, expected = tensor_of(result), tensor_of(expected)
    near = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
    return result.shape == expected.shape and torch.allclose(result, expected, **near)


NO_GRADIENTS = "Right, but the page trains with it: return a tensor that gradients flow through."
ROUNDED = "Right up to the rounding of float32: compute in the dtype of what comes in."


def torch_weights(scores):
    """What torch's own attention makes of scores, where queries, keys and values are theirs."""
    whole = torch.eye(scores.shape[-1], dtype=scores.dtype).expand(scores.shape)
    return scaled_dot_product_attention(scores, whole, whole, is_causal=True, scale=1.0)


def training(solution):
    """What comes in hangs on parameters, as on the page: what is right hands gradients back."""

    def play(attempt, *given):
        given = [each.requires_grad_() * 1 for each in given]
        result, expected = attempt(*given), solution(*given)
        if not same_weights(result, expected):
            return result
        if not getattr(result, "requires_grad", False):
            raise NotYet(NO_GRADIENTS)
        if result.ndim > 3:  # the last cases: what else is wrong has been told
            if result.dtype != expected.dtype or not torch.allclose(result, expected, 1e-9, 1e-9):
                raise NotYet(ROUNDED)
        return result

    return play


def row_that_differs(result, expected):
    """The first row that is wrong, beside what it should be."""
    if tensor_of(result).shape != expected.shape:
        return expected_and_got(result, expected)
    result = torch.as_tensor(result)
    row = next(
        i for i, rows in enumerate(zip(result, expected, strict=True)) if not same_weights(*rows)
    )
    return [f"row {row}: {line}" for line in expected_and_got(result[row], expected[row])]


def hiding(diagonal, dim=-1, fill=-math.inf):
    """Hide from this diagonal on."""

    def attempt(scores):
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(diagonal)
        return scores.masked_fill(hidden, fill).softmax(dim)

    return attempt


def seeing_only_from(diagonal):
    """A mask that is true where a token may look, taken for one that is true where it may not."""

    def attempt(scores):
        seen = torch.ones_like(scores, dtype=torch.bool).triu(diagonal)
        return scores.masked_fill(~seen, -math.inf).softmax(-1)

    return attempt


WRONG_WEIGHTS = {
    "Nothing is hidden: the first token sees the last one.": [lambda s: s.softmax(-1)],
    "A token does not see itself: the first row has nothing left.": [hiding(0)],
    "A token sees itself, too: `nan_to_num` covers up that the first row has nothing left.": [
        lambda scores: hiding(0)(scores).nan_to_num()
    ],
    "The columns sum to 1, not the rows: take the softmax along -1.": [
        hiding(1, dim=-2),
        lambda scores: hiding(1)(scores.mT).mT,
    ],
    "Hidden after the softmax: a row no longer sums to 1.": [
        lambda scores: scores.softmax(-1).tril()
    ],
    "The wrong half is hidden: a token sees what comes, not what was.": [
        lambda scores: hiding(1)(scores.flip(-2, -1)).flip(-2, -1),
        seeing_only_from(1),
    ],
    "0 times inf is nan: let `masked_fill` put -inf where it belongs, and nowhere else.": [
        lambda scores: (scores + torch.ones_like(scores).triu(1) * -math.inf).softmax(-1)
    ],
    "A hidden score of 0 is a score like others: exp(0) is 1. Which number has exp 0?": [
        hiding(1, fill=0.0)
    ],
    "Each token sees the next one too: the first diagonal to hide is 1.": [hiding(2)],
}


def row_by_row(scores):
    weights = torch.zeros_like(scores)
    for row in range(scores.shape[-1]):
        weights[..., row, : row + 1] = scores[..., row, : row + 1].softmax(-1)
    return weights


def hidden_after_the_largest(scores):
    powers = (scores - scores.amax(-1, keepdim=True)).exp().tril()
    return powers / powers.sum(-1, keepdim=True)


check_causal = Exercise(
    my_causal_weights,
    read_again='"What may a token see?"',
    cases=[
        table_of_scores(3),
        table_of_scores(4, plus=-200.0),
        table_of_scores(4, plus=-5000.0),
        table_of_scores(4, plus=-9e4),
        table_of_scores(2, plus=1000.0),
        (torch.tensor([[0.0, 900.0], [0.0, 0.0]], dtype=torch.double),),
        (torch.tensor([[0.0, 9e4], [0.0, 0.0]], dtype=torch.double),),
        table_of_scores(1),
        table_of_scores(4, in_front=(3, 3)),
    ],
    given=lambda scores: f"scores {tuple(scores.shape)}, about {scores.mean().item():.0f}",
    play=training(torch_weights),
    same=same_weights,
    compared=row_that_differs,
    hint="Put -inf where a token must not look, before the softmax along the last dimension.",
    errors={
        "size|shape|dimension|too many (values|indices)": "Other dimensions may stand in front: "
        "`scores.shape[-1]` counts tokens, and `scores[..., i, j]` is one score."
    },
    wrong={
        "Scores may be lower than that: only -inf hides whatever they are.": [
            hiding(1, fill=low) for low in (-100.0, -300.0, -1e3, -1e4, -3e4)
        ],
        "A hidden score may be higher by more than you take off: only -inf hides whatever it is.": [
            lambda scores: (scores - 1e4 * torch.ones_like(scores).triu(1)).softmax(-1),
            lambda scores: (scores - 6e4 * torch.ones_like(scores).triu(1)).softmax(-1),
        ],
        "The softmax runs along the last dimension, -1, whatever stands in front.": hiding(
            1, dim=1
        ),
        "Rows are the last dimension but one: `scores[..., i, j]`, not `scores[i, j]`.": (
            lambda s: torch.where(
                torch.ones(s.shape[:2]).tril()[(..., *[None] * (s.ndim - 2))] > 0, s, -math.inf
            ).softmax(-1)
        ),
        "`scores.shape[-1]` counts": lambda scores: scores.masked_fill(
            torch.ones(len(scores), len(scores)).triu(1) > 0, -math.inf
        ).softmax(-1),
        "exp(1000) is inf, and inf / inf is nan: softmax takes the largest score off first.": (
            lambda scores: scores.exp().tril() / scores.exp().tril().sum(-1, keepdim=True)
        ),
        "A hidden score of 900 takes everything: hide before the softmax, not after.": [
            lambda s: s.softmax(-1).tril() / s.softmax(-1).tril().sum(-1, keepdim=True),
            hidden_after_the_largest,
        ],
        **WRONG_WEIGHTS,
        "One softmax is enough: the second makes weights even, as if weights were scores.": [
            lambda scores: hiding(1)(scores).softmax(-1),
            lambda scores: hiding(1)(scores.softmax(-1)),
        ],
        "A score of 0 may be one that is seen: choose what to hide by its place, not by being 0.": (
            lambda scores: scores.tril().masked_fill(scores.tril() == 0, -math.inf).softmax(-1)
        ),
        "The softmax is missing: it makes weights of what is left.": (
            lambda s: s.masked_fill(torch.ones_like(s).triu(1) > 0, -math.inf)
        ),
        "The scores come ready: hide some, take the softmax, and divide by nothing more.": (
            lambda scores: hiding(1)(scores / len(scores) ** 0.5)
        ),
        "These are logarithms of weights: take `softmax`, not `log_softmax`.": (
            lambda scores: hiding(1)(scores).log()
        ),
        NO_GRADIENTS: [lambda s: row_by_row(s).tolist(), lambda s: hiding(1)(s).detach()],
        ROUNDED: [lambda s: hiding(1)(s).float(), lambda s: hiding(1)(s.float()).double()],
        "Put -inf where": lambda scores: scores,
    },
    also_right=[
        row_by_row,
        lambda s: s.masked_fill_(torch.ones_like(s).triu(1) > 0, -math.inf).softmax(-1),
    ],
)

# 2. Attention

causal_weights = my_causal_weights  # as the page calls it


def my_attend(query, key, value):
    """Score each query against each key, make weights of a row of scores, sum the values by them.

    Matrix products take the last two dimensions. Heads and texts in front stay apart, so one line
    serves one head or all of them.
    """
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return causal_weights(scores) @ value


def attending(scale=lambda query: query.shape[-1] ** 0.5, weights=my_causal_weights):
    """Attention with another scale or other weights."""

    def attempt(query, key, value):
        return weights(query @ key.mT / scale(query)) @ value

    return attempt


def all_heads_columns(query):
    return (query.shape[-1] * (query.shape[-3] if query.ndim > 2 else 1)) ** 0.5


def by_sums(query, key, value):
    scores = torch.einsum("...ic,...jc->...ij", query * query.shape[-1] ** -0.5, key)
    powers = (scores - scores.amax(-1, keepdim=True)).exp().tril()
    return (powers.unsqueeze(-1) * value.unsqueeze(-3)).sum(-2) / powers.sum(-1, keepdim=True)


def by_hand(attempt, *three):
    result = training(partial(scaled_dot_product_attention, is_causal=True))(attempt, *three)
    if same_weights(result, scaled_dot_product_attention(*three, is_causal=True)):
        borrowing = {"scaled_dot_product_attention", "attention_weights"}
        refuse_borrowed(attempt, borrowing, "write scores, weights and the sum.")
    return result


def three_tensors(*shape):
    chance = torch.Generator().manual_seed(shape[-1])
    return tuple(3 * torch.randn(3, *shape, generator=chance, dtype=torch.double))


check_attend = Exercise(
    my_attend,
    read_again='"How does a token look?"',
    cases=[
        three_tensors(*shape) for shape in ((3, 3), (5, 7), (3, 5, 4), (2, 3, 1, 6), (2, 3, 7, 5))
    ],
    given=lambda query, key, value: f"queries, keys and values of shape {tuple(query.shape)}",
    play=by_hand,
    same=same_weights,
    compared=row_that_differs,
    hint="Products of queries and keys, divided by a root; `causal_weights`; times the values.",
    errors={
        "size|shape|dimension|T` ": "Texts and heads may stand in front: `transpose(-2, -1)` turns "
        "the keys, `query.shape[-2]` counts tokens, `query.shape[-1]` columns."
    },
    wrong={
        "Divide the scores by the square root of `columns`.": attending(lambda query: 1),
        "Divide by the square root of `columns`, not by `columns`.": attending(
            lambda query: query.shape[-1]
        ),
        "The root of a head's `columns`, whatever they are: a fixed number fits one width.": [
            attending(lambda query: 8),
            attending(lambda query: 4),
        ],
        "Divide by the root; this multiplies, and longer rows get still larger scores.": attending(
            lambda query: query.shape[-1] ** -0.5
        ),
        "The root of how many numbers a query has, not of how many tokens there are.": attending(
            lambda query: query.shape[-2] ** 0.5
        ),
        "`shape[1]` is `columns` only where nothing stands in front: take `shape[-1]`.": attending(
            lambda query: query.shape[1] ** 0.5
        ),
        "`causal_weights` takes the softmax already: once is enough.": attending(
            weights=lambda scores: causal_weights(scores).softmax(-1)
        ),
        "The root of one head's `columns`, not of the width of all heads together.": attending(
            all_heads_columns
        ),
        "Divide the scores, before the softmax: after it, a row no longer sums to 1.": (
            lambda q, k, v: causal_weights(q @ k.mT) @ v / q.shape[-1] ** 0.5
        ),
        "The weights sum up values; this hands over keys or queries.": [
            lambda q, k, v: attending()(q, k, k),
            lambda q, k, v: attending()(q, k, q),
        ],
        "A row of scores is one query's: `query @ ...` of the keys, not the other way round.": [
            lambda q, k, v: attending()(k, q, v),
            lambda q, k, v: causal_weights(q @ k.mT / q.shape[-1] ** 0.5).mT @ v,
        ],
        "Queries are compared with keys, not with themselves or with values.": [
            lambda q, k, v: attending()(q, q, v),
            lambda q, k, v: attending()(k, k, v),
            lambda q, k, v: attending()(q, v, v),
        ],
        "A score is a dot product, which adds up: `query @ key.transpose(-2, -1)`, not `*`.": (
            lambda q, k, v: causal_weights(q * k / q.shape[-1] ** 0.5) @ v
        ),
        "Turn the keys: `query @ key` takes columns for tokens.": (
            lambda q, k, v: causal_weights(q @ k / q.shape[-1] ** 0.5) @ v
        ),
        "`weights @ value`, in this order: a row of weights adds up rows of values.": (
            lambda q, k, v: v @ causal_weights(q @ k.mT / q.shape[-1] ** 0.5)
        ),
        NO_GRADIENTS: lambda *three: by_sums(*three).detach(),
        ROUNDED: [
            lambda *three: by_sums(*(each.float() for each in three)),
            attending(lambda q: torch.tensor(q.shape[-1]) ** 0.5),
        ],
        "The values are missing: these are weights or scores.": [
            lambda q, k, v: causal_weights(q @ k.mT / q.shape[-1] ** 0.5),
            lambda q, k, v: q @ k.mT / q.shape[-1] ** 0.5,
        ],
        "The softmax is missing: the weights of a token sum to 1.": [
            attending(weights=torch.tril),
            attending(weights=lambda s: s),
        ],
        "The softmax runs along the last dimension, -1, whatever stands in front.": attending(
            weights=hiding(1, dim=1)
        ),
        **{
            words: [attending(weights=each) for each in answers]
            for words, answers in WRONG_WEIGHTS.items()
        },
        "the work: write scores": (
            lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        ),
        "`transpose(-2, -1)` turns": (
            lambda q, k, v: causal_weights(q @ k.transpose(0, 1) / q.shape[-1] ** 0.5) @ v
        ),
    },
    also_right=[by_sums, attending(lambda q: torch.tensor(q.shape[-1]).double() ** 0.5)],
)

# 3. A decoder of its parts

UNCALLED = "Call the parts in the table; what holds several of them (the model, a block, "
UNCALLED += "`model.embedding`, `model.head`) stays uncalled."


def my_logits(model, tokens):
    """What a token is and where it stands; then each block adds to the residual stream, twice.

    What flows on is never normed itself: only what attention and MLP read of it. So a block whose
    matrices are small changes little, and gradients reach the first block along the sums.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    x = model.embedding.tokens(tokens) + model.embedding.positions(places)
    for block in model.blocks:
        x = x + block.attention(block.norm_1(x))
        x = x + block.mlp(block.norm_2(x))
    return model.head.output(model.head.norm(x))


def of_a_decoder(attempt, layers, texts, places):
    """The logits that an attempt finds; what holds several parts cannot be called."""
    torch.default_generator.manual_seed(layers)
    model = Decoder(3, 12, 3, layers, context=6).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    if layers == 2:  # whatever attention is, it is called
        model.blocks[1].attention = nn.Linear(12, 12).double()
    for whole in (model, model.blocks, *model.blocks, model.embedding, model.head):
        whole.forward = refuse_the_whole
    result = attempt(model, torch.randint(3, (texts, places)))
    if isinstance(result, torch.Tensor) and not result.requires_grad:
        raise NotYet(NO_GRADIENTS)
    return result


def refuse_the_whole(*given, **options):
    raise NotYet(UNCALLED)


norm_1 = lambda b, x: b.norm_1(x)
norm_2 = lambda b, x: b.norm_2(x)
attention_alone = lambda b, x: b.attention(b.norm_1(x))
mlp_alone = lambda b, x: b.mlp(b.norm_2(x))
attend = lambda b, x: x + b.attention(b.norm_1(x))
think = lambda b, x: x + b.mlp(b.norm_2(x))
attend_unnormed = lambda b, x: x + b.attention(x)
think_unnormed = lambda b, x: x + b.mlp(x)
think_after_norm_1 = lambda b, x: x + b.mlp(b.norm_1(x))


def decoding(*steps, embed=None, head=None, blocks=slice(None)):
    """A decoder of which one part is another: the steps of a block, what is before or after."""

    def attempt(model, tokens):
        places = torch.arange(tokens.shape[1]).to(tokens.device).expand_as(tokens)
        x = model.embedding.tokens(tokens) + model.embedding.positions(places)
        x = embed(model, tokens) if embed else x
        for block in [*model.blocks][blocks]:
            for step in steps or (attend, think):
                x = step(block, x)
        return head(model.head, x) if head else model.head.output(model.head.norm(x))

    return attempt


def at(places):
    """Tokens at other places."""
    return decoding(
        embed=lambda model, tokens: (
            model.embedding.tokens(tokens) + model.embedding.positions(places(tokens))
        )
    )


check_logits = Exercise(
    my_logits,
    read_again='"Put together: the decoder"',
    cases=[(0, 1, 2), (1, 1, 3), (2, 2, 6)],
    given="number of blocks: {}, texts: {}, tokens in each: {}",
    play=of_a_decoder,
    hint="Embed and add positions; for each block add attention, then MLP, each of a normed input; "
    "then the last norm and the output.",
    correct="Its logits are the package's own.",
    wrong={
        UNCALLED: [
            lambda model, tokens: model(tokens),
            decoding(embed=lambda model, tokens: model.embedding(tokens)),
            decoding(lambda block, x: block(x)),
            decoding(head=lambda head, x: head(x)),
        ],
        "Where a token stands is missing: add `model.embedding.positions` of 0, 1, 2, ...": (
            decoding(embed=lambda model, tokens: model.embedding.tokens(tokens))
        ),
        "Positions are looked up by place (0, 1, 2, ...), not by token.": at(lambda tokens: tokens),
        "The first token stands at place 0.": at(lambda t: (t[0] * 0 + 1).cumsum(0).clamp(max=5)),
        "`tokens.shape[0]` is the number of texts; places run along `tokens.shape[1]`.": at(
            lambda tokens: torch.arange(tokens.shape[0])
        ),
        "The norm comes before attention and MLP; their sums flow on as they are.": [
            decoding(attend_unnormed, norm_1, think_unnormed, norm_2),
            decoding(norm_1, attend_unnormed, norm_2, think_unnormed),
            decoding(norm_1, attend_unnormed, think),
            decoding(attend, norm_2, think_unnormed),
        ],
        "The MLP reads what attention has added; here both read the same.": decoding(
            lambda b, x: x + attention_alone(b, x) + mlp_alone(b, x)
        ),
        "A block adds twice: what attention gives, and what the MLP gives.": [
            *map(decoding, (attend, think))
        ],
        "Attention comes first, the MLP second.": decoding(think, attend),
        "Each part adds to x: `x = x + ...`. Here x is lost.": [
            decoding(attention_alone, mlp_alone),
            decoding(lambda b, x: x + mlp_alone(b, attention_alone(b, x))),
            decoding(attend, mlp_alone),
            decoding(attention_alone, think),
        ],
        "Attention and MLP read a normed x: `block.norm_1(x)` and `block.norm_2(x)`.": [
            decoding(attend_unnormed, think_unnormed),
            decoding(
                lambda b, x: x + b.norm_1(b.attention(x)), lambda b, x: x + b.norm_2(b.mlp(x))
            ),
            decoding(attend_unnormed, think),
            decoding(attend, think_unnormed),
        ],
        "Each part has a norm of its own: `norm_1` is attention's, `norm_2` the MLP's.": [
            decoding(attend, think_after_norm_1),
            decoding(lambda b, x: x + b.attention(b.norm_2(x)), think_after_norm_1),
        ],
        "The output layer is missing: `model.head.output` makes logits of the normed x.": [
            decoding(head=lambda head, x: head.norm(x)),
            decoding(head=lambda head, x: x),
        ],
        "The last norm is missing: `model.head.norm` comes before the output layer.": decoding(
            head=lambda head, x: head.output(x)
        ),
        "Logits are asked, not probabilities: no softmax at the end.": (
            lambda model, tokens: my_logits(model, tokens).softmax(-1)
        ),
        "Logits are asked, not logarithms of probabilities: no softmax at the end.": (
            lambda model, tokens: my_logits(model, tokens).log_softmax(-1)
        ),
        "Which tokens they are is missing: add `model.embedding.tokens(tokens)`.": decoding(
            embed=lambda model, tokens: model.embedding.positions(
                torch.arange(tokens.shape[1]).expand_as(tokens)
            )
        ),
        "The blocks come in the order of `model.blocks`.": decoding(blocks=slice(None, None, -1)),
        "GELU is missing between `up` and `down`: `block.mlp(...)` has it.": decoding(
            attend, lambda b, x: x + b.mlp.down(b.mlp.up(b.norm_2(x)))
        ),
        "Logits of every place are asked, not of the last alone.": (
            lambda model, tokens: my_logits(model, tokens)[:, -1]
        ),
        "Not every block had its turn.": decoding(blocks=slice(1)),
        NO_GRADIENTS: torch.no_grad()(my_logits),
    },
    also_right=[decoding()],
)

# 4. Parameters and operations


def my_counts(vocabulary, width, layers, context):
    """Add up what each layer has; then double the products, and take all of them three times.

    A block has four matrices in attention and two, four times as large, in the MLP. Each token
    meets each of these weights once; only attention's two products grow with the context's square.
    """
    block = 12 * width**2 + 13 * width  # 9 * width biases, two norms of 2 * width
    tables = (vocabulary + context + vocabulary) * width  # tokens, positions, output layer
    parameters = layers * block + tables + 2 * width
    weights = layers * 12 * width**2 + vocabulary * width  # that take part in products
    forward = 2 * context * weights + layers * 2 * 2 * context**2 * width
    return parameters, 3 * forward


def counted_by_torch(vocabulary, width, layers, context):
    model = Decoder(vocabulary, width, 1, layers, context)
    tokens = torch.zeros(1, context, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(model(tokens)[0], tokens[0]).backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def first_wrong(attempt, vocabulary, width, layers, context):
    """Parameters alone, if these are wrong: the words for them fit whatever comes second."""
    parameters, operations = attempt(vocabulary, width, layers, context)
    model = Decoder(vocabulary, width, 1, layers, context)
    right = same(parameters, sum(p.numel() for p in model.parameters()))
    return {"parameters": parameters, **({"operations": operations} if right else {})}


def counting(kind, times=1, **terms):
    """The right counts, of which one kind has more: nw=3 is 3 * blocks * width, and so on."""

    def attempt(*sizes):
        size, right = dict(zip("vwnt", sizes, strict=True)), [*my_counts(*sizes)]
        more = sum(k * math.prod(size[letter] for letter in term) for term, k in terms.items())
        right[kind] = times * right[kind] + more
        return right

    return attempt


more, work = partial(counting, 0), partial(counting, 1)  # parameters, operations

check_counts = Exercise(
    my_counts,
    read_again='"How large is it, and how much work?"',
    cases=[(5, 3, 1, 7), (7, 6, 2, 5), (50, 8, 3, 16)],
    given="vocabulary {}, width {}, blocks {}, context {}",
    play=first_wrong,
    hint="Write down each layer's sizes: six in a block, and `model.head.output`. A weight has two "
    "operations a token, attention two more products, and training three times the forward's.",
    errors={"unpack": "Two numbers are asked: `return parameters, operations`."},
    wrong={
        "The weights alone: biases and norms are parameters, too.": more(nw=-13, w=-2),
        "Biases are missing: each output of a layer in a block has one.": more(nw=-9),
        "Biases: queries, keys, values have some, the MLP's first layer `4 * width`.": more(nw=-3),
        "In each block, the two norms are missing, or the four biases of attention.": more(nw=-4),
        "Norms are missing: two in a block, one behind, each with two rows of `width`.": [
            *(more(nw=-4, w=-2), more(nw=-2, w=-1), more(w=-2))
        ],
        "The output layer has `vocabulary * width` weights of its own.": more(vw=-1),
        "`model.head.output` has no biases.": more(v=1),
        "The table of positions is missing: a row for each place.": more(tw=-1),
        "Attention has four layers: for queries, keys, values, and the output.": [
            *(more(nww=-1, nw=-1), more(nww=-1))
        ],
        "The MLP has two layers, with `4 * width * width` weights each.": more(nww=-4),
        "That is one block: each has its own.": more(nww=-12, ww=12, nw=-13, w=13),
        "Parameters come first, then operations.": lambda *sizes: my_counts(*sizes)[::-1],
        "The forward alone; the backward makes two more products for each.": work(times=1 / 3),
        "The backward has two products for each of the forward: together three.": work(2 / 3),
        "A multiplication and an addition are two operations.": work(times=1 / 2),
        "Attention's own products are missing: scores, and sums of values.": work(ttnw=-12),
        "Half of attention's products is missing: scores and sums, hidden, too.": [
            *(work(ttnw=-6), work(ttnw=-6, tnw=6))
        ],
        "The output layer comes once, not in each block.": work(tnvw=6, tvw=-6),
        "That is one token: the text has `context` of them.": (
            lambda *sizes: (my_counts(*sizes)[0], my_counts(*sizes)[1] / sizes[3])
        ),
        "The products of the output layer are missing.": work(tvw=-6),
        "The table of tokens is looked up: that is no product.": work(tvw=6),
        "Six for each parameter and token: tables and norms are in no product, scores in none.": (
            lambda *sizes: (my_counts(*sizes)[0], 6 * sizes[3] * my_counts(*sizes)[0])
        ),
        "six in a block": lambda *sizes: (0, 0),
    },
    also_right=[counted_by_torch, lambda *sizes: [float(n) for n in my_counts(*sizes)]],
)

# 5. The bytes of a cache


def my_cache_bytes(layers, key_heads, head_width, texts, tokens, bytes_each):
    """A key and a value for each of the heads that have some, in each block, for each token.

    How many heads ask does not matter: queries are not kept, only the new token asks. So models
    that people serve have fewer heads of keys and values than of queries ("grouped queries").
    """
    return 2 * layers * key_heads * head_width * texts * tokens * bytes_each


def over(*names, times=1):
    """Times the right bytes, without the sizes of these names."""

    def attempt(*sizes):
        size = dict(zip(inspect.signature(my_cache_bytes).parameters, sizes, strict=True))
        return times * my_cache_bytes(*sizes) / math.prod(size[name] for name in names)

    return attempt


def one_tensor_at_a_time(layers, key_heads, head_width, texts, tokens, bytes_each):
    kept = torch.empty(texts, key_heads, tokens, head_width, device="meta")
    return sum(bytes_each * kept.numel() for _ in range(layers) for _ in ("key", "value"))


check_cache_bytes = Exercise(
    my_cache_bytes,
    read_again='"What does a cache cost, and what does it save?"',
    cases=[(3, 5, 2, 7, 11, 1), (4, 4, 16, 1, 48, 4), (32, 8, 128, 8, 2048, 2), (1, 3, 4, 5, 1, 1)],
    given="{} blocks, {} heads of keys and values of width {}, {} texts of {} tokens, {} bytes "
    "each number",
    hint="Each block keeps a key and a value of `head_width` numbers for each of these heads, for "
    "every token of every text.",
    wrong={
        "Twice as much: each token has one key and one value, two in all.": over(times=2),
        "`tokens` are all in the cache, none more and none fewer.": (
            lambda n, h, w, b, t, e: 2 * n * h * w * b * (t - 1) * e
        ),
        "Half of it: keys and values are both kept.": over(times=1 / 2),
        "That counts numbers; each has `bytes_each` bytes.": over("bytes_each"),
        "The numbers may have 1, 2 or 4 bytes: take `bytes_each`.": [
            *(over("bytes_each", times=4), over("bytes_each", times=2))
        ],
        "That is one block's: each block has keys and values of its own.": over("layers"),
        "That is one head's: each of the heads has keys and values.": over("key_heads"),
        "The width of a head is missing: a key has `head_width` numbers.": over("head_width"),
        "That is one text's: each has a past of its own.": over("texts"),
        "`tokens` is missing: the cache holds a key and a value of each.": over("tokens"),
        "These are bits: `bytes_each` counts bytes already.": over(times=8),
        "Bytes are asked, not a thousand or a billion of them.": [
            over(times=1 / many) for many in (1e9, 2**30, 1e6, 1024)
        ],
        "The cache grows with the tokens, not with their square: no weights.": (
            lambda n, h, w, b, t, e: 2 * n * h * w * b * t**2 * e
        ),
        "Queries are not kept: only the new token asks.": over(times=3 / 2),
        "a key and a value of `head_width` numbers": lambda *sizes: 1,
    },
    also_right=[one_tensor_at_a_time],
)

# 6. Tied copies

GRADIENTS_ONLY = "The copies themselves were changed: change `.grad` alone."
TWICE = "The second sum took in the first one's result: add up once."
ONE_TENSOR = "Both copies have one and the same gradient tensor: clipping would scale it twice."


@torch.no_grad()
def my_mend(first, last):
    """One tensor that is used twice gets the sum of both uses' gradients; so do its copies.

    The sum is made once, before either gradient changes. With the mean the copies would stay
    equal too, but their gradient is half of the tied tensor's.
    """
    total = first.grad + last.grad.to(first.device)
    first.grad.copy_(total)
    last.grad.copy_(total)


def with_two_copies(attempt, of_first, of_last, apart):
    """The gradients of two copies after the attempt; it may keep the stub's last line."""
    gpus = usable_gpus() if apart else []
    of_last = of_last.to(f"cuda:{gpus[0]}" if gpus else "cpu")
    # not equal here, so that a copied or averaged weight is seen
    first, last = nn.Parameter(torch.ones_like(of_first)), nn.Parameter(torch.zeros_like(of_last))
    first.grad, last.grad = of_first.clone(), of_last.clone()
    result = inspect.unwrap(attempt)(first, last)
    if result is ... and same([first.grad, last.grad], [of_first, of_last]):
        raise NotAttempted
    if not same([first, last], [torch.ones_like(of_first), torch.zeros_like(of_last)]):
        raise NotYet(GRADIENTS_ONLY)
    both = [grad.data_ptr() for grad in (first.grad, last.grad) if grad is not None]
    if len(both) == 2 and both[0] == both[1]:
        raise NotYet(ONE_TENSOR)
    return [first.grad, last.grad]


def setting(gradients):
    """Give both copies the gradients that a function of the two makes."""

    def attempt(first, last):
        first.grad, new = gradients(first.grad, last.grad.to(first.device))
        last.grad = None if new is None else new.to(last.device)

    return attempt


def into_the_weights(first, last):
    first.data = last.data = first.grad + last.grad


def averaged_weights(first, last):
    my_mend(first, last)
    last.data = (first.data + last.data) / 2


def one_tensor_for_both(first, last):
    first.grad = last.grad = first.grad + last.grad


def one_storage_for_both(first, last):
    first.grad.data = last.grad.data = first.grad + last.grad


def a_clone_of_the_sum(first, last):
    first.grad += last.grad.to(first.device)
    last.grad = first.grad.clone().to(last.device)
    return ...


check_tied = Exercise(
    my_mend,
    read_again='"One tensor, two devices?"',
    cases=[
        (torch.tensor([[0.5, -1.25]]), torch.tensor([[2.0, 0.75]]), False),
        (
            torch.tensor([[0.1, 1], [2, -3], [4, 5]]),
            torch.tensor([[1, -2], [0.3, 4], [-5, 6.0]]),
            True,
        ),
    ],
    given=lambda a, b, apart: (
        f"gradients {short(a)} and {short(b)}"
        + (", the last on a GPU if there is one" if apart else "")
    ),
    play=with_two_copies,
    hint="Both have a `.grad` of the same shape: add both once, and give both copies the sum.",
    correct="Both copies have the sum, and so take the same step. Two devices are tested only "
    "where there is a GPU: does your sum bring both gradients to one, with `.to(...)`?",
    wrong={
        "Both gradients are as they were. `x = x + y` in a function changes no tensor.": (
            lambda first, last: None
        ),
        "That is the mean. Used twice, a tensor gets the sum.": setting(
            lambda a, b: [(a + b) / 2, (a + b) / 2]
        ),
        "The last copy still has the gradient of its own use alone.": setting(
            lambda a, b: (a + b, b)
        ),
        "The first copy still has the gradient of its own use alone.": setting(
            lambda a, b: (a, a + b)
        ),
        TWICE: [
            setting(lambda a, b: (a + b, a + b + b)),
            setting(lambda a, b: (a + b + a, a + b)),
        ],
        "Changed places: each copy now has the gradient of the other use alone.": setting(
            lambda a, b: (b, a)
        ),
        "The gradient of the last use is lost.": setting(lambda a, b: (a, a.clone())),
        "The gradient of the first use is lost.": setting(lambda a, b: (b, b.clone())),
        "give both copies the sum": [
            setting(lambda a, b: (a - b, b * 0 + a - b)),
            setting(lambda a, b: (None, None)),
        ],
        GRADIENTS_ONLY: [into_the_weights, averaged_weights],
        ONE_TENSOR: [one_tensor_for_both, one_storage_for_both],
    },
    also_right=[a_clone_of_the_sum, setting(lambda a, b: (a + b, b + a))],
)
