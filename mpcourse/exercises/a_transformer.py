"""Exercises of page `a_transformer`: mask, attention, decoder, its size, tied copies."""

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


WRONG_WEIGHTS = {
    "The softmax runs along the last dimension, -1, whatever stands in front.": ["-1 => 1"],
    "Nothing is hidden: the first token sees the last one.": [lambda s: s.softmax(-1)],
    "A token does not see itself: the first row has nothing left.": ["triu(1) => triu(0)"],
    "A token sees itself, too: `nan_to_num` covers up that the first row has nothing left.": [
        ("triu(1) => triu(0)", "dim=-1) => -1).nan_to_num()")
    ],
    "The columns sum to 1, not the rows: take the softmax along -1.": [
        "-1 => -2",
        lambda s: my_causal_weights(s.mT).mT,
    ],
    "Hidden after the softmax: a row no longer sums to 1.": [lambda s: s.softmax(-1).tril()],
    "The wrong half is hidden: a token sees what comes, not what was.": [
        "triu(1) => tril(-1)",
        "(ahead => (~ahead",
    ],
    "0 times inf is nan: let `masked_fill` put -inf where it belongs, and nowhere else.": [
        'scores.masked_fill(ahead, float("-inf")) => (scores + ahead * float("-inf"))'
    ],
    "A hidden score of 0 is a score like others: exp(0) is 1. Which number has exp 0?": [
        'float("-inf") => 0.0'
    ],
    "Each token sees the next one too: the first diagonal to hide is 1.": ["triu(1) => triu(2)"],
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
            f'float("-inf") => {low}' for low in (-100.0, -300.0, -1e3, -1e4, -3e4)
        ],
        "A hidden score may be higher by more than you take off: only -inf hides whatever it is.": [
            f'scores.masked_fill(ahead, float("-inf")) => (scores - {much} * ahead)'
            for much in (1e4, 6e4)
        ],
        "Rows are the last dimension but one: `scores[..., i, j]`, not `scores[i, j]`.": (
            lambda s: torch.where(
                torch.ones(s.shape[:2]).tril()[(..., *[None] * (s.ndim - 2))] > 0, s, -math.inf
            ).softmax(-1)
        ),
        "`scores.shape[-1]` counts": "ones_like(scores => ones(len(scores), len(scores)",
        "exp(1000) is inf, and inf / inf is nan: softmax takes the largest score off first.": (
            lambda scores: scores.exp().tril() / scores.exp().tril().sum(-1, keepdim=True)
        ),
        "A hidden score of 900 takes everything: hide before the softmax, not after.": [
            lambda s: s.softmax(-1).tril() / s.softmax(-1).tril().sum(-1, keepdim=True),
            hidden_after_the_largest,
        ],
        **WRONG_WEIGHTS,
        "One softmax is enough: the second makes weights even, as if weights were scores.": [
            "dim=-1) => dim=-1).softmax(-1)",
            "scores.masked_fill => scores.softmax(-1).masked_fill",
        ],
        "A score of 0 may be one that is seen: choose what to hide by its place, not by being 0.": (
            lambda scores: scores.tril().masked_fill(scores.tril() == 0, -math.inf).softmax(-1)
        ),
        "The softmax is missing: it makes weights of what is left.": ".softmax(dim=-1) => ",
        "The scores come ready: hide some, take the softmax, and divide by nothing more.": (
            "scores.masked_fill => (scores / len(scores) ** 0.5).masked_fill"
        ),
        "These are logarithms of weights: take `softmax`, not `log_softmax`.": (
            ".softmax => .log_softmax"
        ),
        NO_GRADIENTS: [lambda s: row_by_row(s).tolist(), "dim=-1) => -1).detach()"],
        ROUNDED: ["dim=-1) => -1).float()", lambda s: my_causal_weights(s.float()).double()],
        "Put -inf where": lambda scores: scores,
    },
    also_right=[row_by_row, "masked_fill => masked_fill_"],
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


def attending(weights):
    return lambda query, key, value: weights(query @ key.mT / query.shape[-1] ** 0.5) @ value


def by_sums(query, key, value):
    scores = torch.einsum("...ic,...jc->...ij", query * query.shape[-1] ** -0.5, key)
    return torch.einsum("...ij,...jc->...ic", hidden_after_the_largest(scores), value)


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
        "Divide the scores by the square root of `columns`: `** 0.5`.": [
            " / query.shape[-1] ** 0.5 => ",
            " ** 0.5 => ",
            "** 0.5 => ** 2",
        ],
        "The root of a head's `columns`, whatever they are: a fixed number fits one width.": [
            f"query.shape[-1] ** 0.5 => {root}" for root in (8, 4)
        ],
        "Divide by the root; this multiplies, and longer rows get still larger scores.": (
            "/ query => * query"
        ),
        "The root of how many numbers a query has, not of how many tokens there are.": (
            "shape[-1] => shape[-2]"
        ),
        "`shape[1]` is `columns` only where nothing stands in front: take `shape[-1]`.": (
            "shape[-1] => shape[1]"
        ),
        "`causal_weights` takes the softmax already: once is enough.": (
            "weights(scores) => weights(scores).softmax(-1)"
        ),
        "The root of one head's `columns`, not of the width of all heads together.": (
            "query.shape[-1] => query[..., 0, :].shape[-2:].numel()"
        ),
        "Divide the scores, before the softmax: after it, a row no longer sums to 1.": (
            lambda q, k, v: causal_weights(q @ k.mT) @ v / q.shape[-1] ** 0.5
        ),
        "The weights sum up values; this hands over keys or queries.": [
            "@ value => @ key",
            "@ value => @ query",
        ],
        "A row of scores is one query's: `query @ ...` of the keys, not the other way round.": [
            "query @ key => key @ query",
            "weights(scores) => weights(scores).mT",
        ],
        "Queries are compared with keys, not with themselves or with values.": [
            "@ key => @ query",
            "query @ => key @",
            "@ key => @ value",
        ],
        "A score is a dot product, which adds up: `query @ key.transpose(-2, -1)`, not `*`.": (
            "@ key.transpose(-2, -1) => * key"
        ),
        "Turn the keys: `query @ key` takes columns for tokens.": ".transpose(-2, -1) => ",
        "`weights @ value`, in this order: a row of weights adds up rows of values.": (
            "causal_weights(scores) @ value => value @ causal_weights(scores)"
        ),
        NO_GRADIENTS: lambda *three: by_sums(*three).detach(),
        ROUNDED: [
            lambda *three: by_sums(*(each.float() for each in three)),
            "query.shape[-1] => torch.tensor(query.shape[-1])",
        ],
        "The values are missing: these are weights or scores.": [
            " @ value => ",
            "causal_weights(scores) @ value => scores",
        ],
        "The softmax is missing: the weights of a token sum to 1.": [
            "causal_weights(scores) => scores.tril()",
            "causal_weights(scores) => scores",
        ],
        **{
            words: [attending(check_causal.answer(each)) for each in answers]
            for words, answers in WRONG_WEIGHTS.items()
        },
        "the work: write scores": lambda *qkv: scaled_dot_product_attention(*qkv, is_causal=True),
        "`transpose(-2, -1)` turns": "transpose(-2, -1) => transpose(0, 1)",
    },
    also_right=[by_sums, "query.shape[-1] => torch.tensor(query.shape[-1]).double()"],
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
    tokens = torch.randint(3, (texts, places))
    expected = model(tokens)
    for whole in (model, model.blocks, *model.blocks, model.embedding, model.head):
        whole.forward = refuse_the_whole
    result = attempt(model, tokens)
    if not getattr(result, "requires_grad", False) and same(result, expected):
        raise NotYet(NO_GRADIENTS)
    return result


def refuse_the_whole(*given, **options):
    raise NotYet(UNCALLED)


ALL_PLACES = (
    "The table of positions is longer than these texts: call it with the places 0 to T - 1."
)
LOST = ["x + block.attention => block.attention", "x + block.mlp => block.mlp"]
UNNORMED = ["block.norm_1(x) => x", "block.norm_2(x) => x"]
NORMS_FLOW_ON = [
    "x + block.attention(block.norm_1(x)) => (x := block.norm_1(x)) + block.attention(x)",
    "x + block.mlp(block.norm_2(x)) => (x := block.norm_2(x)) + block.mlp(x)",
]

check_logits = Exercise(
    my_logits,
    read_again='"Put together: the decoder"',
    cases=[(0, 1, 2), (1, 1, 3), (2, 2, 6)],
    given="number of blocks: {}, texts: {}, tokens in each: {}",
    play=of_a_decoder,
    hint="Embed and add positions; for each block add attention, then MLP, each of a normed input; "
    "then the last norm and the output.",
    correct="Its logits are the package's own.",
    errors={"must match the size": ALL_PLACES},
    wrong={
        UNCALLED: [
            lambda model, tokens: model(tokens),
            ".tokens(tokens) + model.embedding.positions(places) => (tokens)",
            "x + block.attention(block.norm_1(x)) => block(x)",
            ".output(model.head.norm(x)) => (x)",
        ],
        "Where a token stands is missing: add `model.embedding.positions` of 0, 1, 2, ...": (
            " + model.embedding.positions(places) => "
        ),
        "Positions are looked up by place, of which the first is 0, not by token.": [
            f"(places) => ({found})" for found in ("tokens", "(places + 1).clamp(max=5)")
        ],
        "`tokens.shape[0]` is the number of texts; places run along `tokens.shape[1]`.": (
            "shape[1] => shape[0]"
        ),
        "The norm comes before attention and MLP; their sums flow on as they are.": [
            (
                "x + block.attention(block.norm_1( => block.norm_1(x + block.attention(",
                "x + block.mlp(block.norm_2( => block.norm_2(x + block.mlp(",
            ),
            tuple(NORMS_FLOW_ON),
            *NORMS_FLOW_ON,
        ],
        "The MLP reads what attention has added; here both read the same.": (
            "\n        x = x + block.mlp =>  + block.mlp"
        ),
        "A block adds twice: what attention gives, and what the MLP gives.": [
            " + block.mlp(block.norm_2(x)) => ",
            " + block.attention(block.norm_1(x)) => ",
        ],
        "In each block the MLP follows attention: one loop over the blocks, not two.": (
            "\n        x = x + block.mlp => "
            "\n    for block in model.blocks:\n        x = x + block.mlp"
        ),
        "Attention comes first, the MLP second.": (
            " + block.attention(block.norm_1(x)) => ",
            "norm_2(x)) => norm_2(x)); x = x + block.attention(block.norm_1(x))",
        ),
        "Each part adds to x: `x = x + ...`. Here x is lost.": [
            tuple(LOST),
            (
                " + block.attention(block.norm_1(x)) => ",
                "norm_2(x) => norm_2(block.attention(block.norm_1(x)))",
            ),
            *LOST,
        ],
        "Attention and MLP read a normed x: `block.norm_1(x)` and `block.norm_2(x)`.": [
            tuple(UNNORMED),
            (
                "attention(block.norm_1( => norm_1(block.attention(",
                "mlp(block.norm_2( => norm_2(block.mlp(",
            ),
            *UNNORMED,
        ],
        "Each part has a norm of its own: `norm_1` is attention's, `norm_2` the MLP's.": [
            "norm_2 => norm_1",
            ("(block.norm_1(x)) => (y := block.norm_1(x))", "(block.norm_2(x)) => (y)"),
            (
                "mlp(block.norm_2 => mlp(block.norm_1",
                "attention(block.norm_1 => attention(block.norm_2",
            ),
        ],
        "The output layer is missing: `model.head.output` makes logits of the normed x.": [
            "output(model.head.norm(x)) => norm(x)",
            "model.head.output(model.head.norm(x)) => x",
        ],
        "The last norm comes once, behind the loop: `model.head.norm` before the output layer.": (
            "model.head.norm(x) => x"
        ),
        "Logits are asked: no softmax at the end, and no logarithm of one.": [
            f"norm(x)) => norm(x)).{log}softmax(-1)" for log in ("", "log_")
        ],
        "Which tokens they are is missing: add `model.embedding.tokens(tokens)`.": (
            "model.embedding.tokens(tokens) + => ",
            "(places) => (places.expand_as(tokens))",
        ),
        "The blocks come in the order of `model.blocks`.": "model.blocks => reversed(model.blocks)",
        "GELU is missing between `up` and `down`: `block.mlp(...)` has it.": (
            "block.mlp(block.norm_2(x)) => block.mlp.down(block.mlp.up(block.norm_2(x)))"
        ),
        "Logits of every place are asked, not of the last alone.": "norm(x)) => norm(x))[:, -1]",
        "A score for each token is asked, not the likeliest.": "norm(x)) => norm(x)).argmax(-1)",
        ALL_PLACES: ".positions(places) => .positions.weight",
        "Not every block had its turn.": "model.blocks => model.blocks[:1]",
        NO_GRADIENTS: torch.no_grad()(my_logits),
    },
    also_right=["(places) => (places.expand_as(tokens))"],
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


check_counts = Exercise(
    my_counts,
    read_again='"How large is it, and how much work?"',
    cases=[(17, 3, 1, 7), (7, 6, 2, 5), (50, 8, 3, 16)],
    given="vocabulary {}, width {}, blocks {}, context {}",
    play=first_wrong,
    hint="Write down each layer's sizes: six in a block, and `model.head.output`. A weight has two "
    "operations a token, attention two more products, and training three times the forward's.",
    errors={"unpack": "Two numbers are asked: `return parameters, operations`."},
    wrong={
        "The weights alone: biases and norms are parameters, too.": (
            "+ 13 * width => ",
            "tables + 2 * width => tables",
        ),
        "Biases: attention has `4 * width`, the MLP's two layers `4 * width` and `width`.": [
            f"13 => {rows}" for rows in (4, 10, 8)
        ],
        "In each block, the two norms are missing, or the four biases of attention.": "13 => 9",
        "Norms are missing: two in a block, one behind, each with two rows of `width`.": [
            ("13 => 9", "tables + 2 * width => tables"),
            ("13 => 11", "tables + 2 * width => tables + width"),
            "tables + 2 * width => tables",
        ],
        "The output layer has `vocabulary * width` weights of its own.": " + vocabulary) => )",
        "`model.head.output` has no biases.": "return parameters => return parameters + vocabulary",
        "The table of positions is missing: a row for each place.": " + context => ",
        "Attention has four layers: for queries, keys, values, and the output.": [
            ("12 => 11", "13 => 12"),
            "12 => 11",
        ],
        "The MLP has two layers, with `4 * width * width` weights each.": "12 => 8",
        "That is one block: each has its own.": "layers * block => block",
        "Parameters come first, then operations.": (
            "parameters, 3 * forward => 3 * forward, parameters"
        ),
        "The forward alone; the backward makes two more products for each.": "3 * f => f",
        "The backward has two products for each of the forward: together three.": "3 * f => 2 * f",
        "For attention's two products, too, the backward has two each.": (
            "layers * 2 * 2 * context**2 * width => layers * 2 * 2 / 3 * context**2 * width"
        ),
        "A multiplication and an addition are two operations.": "3 * f => 3 / 2 * f",
        "Twice too much: two operations for each weight, three times.": "3 * f => 6 * f",
        "Attention's own products are missing: scores, and sums of values.": [
            " + layers * 2 * 2 * context**2 * width => ",
            (
                " + layers * 2 * 2 * context**2 * width => ",
                "12 * width**2 + vocabulary * width => 12 * width**2",
            ),
        ],
        "Half of attention's products is missing: scores and sums, hidden, too.": [
            "2 * 2 * context**2 => 2 * context**2",
            "2 * 2 * context**2 => 2 * context * (context + 1)",
        ],
        "Each token has a score for each: attention's products grow with `context**2`.": (
            "context**2 => context"
        ),
        "Biases and norms are in no product: a block has `12 * width * width` weights.": [
            f"* 12 * width**2 + => * (12 * width**2 + {rows} * width) +" for rows in (13, 9)
        ],
        "The output layer comes once, not in each block.": "vocabulary * => layers * vocabulary *",
        "That is one token: the text has `context` of them.": "3 * f => 3 / context * f",
        "The products of the output layer are missing.": "+ vocabulary * width => ",
        "The table of tokens is looked up: that is no product.": "vocabulary * => 2 * vocabulary *",
        "Six for each parameter and token: tables and norms are in no product, scores in none.": (
            "3 * forward => 6 * context * parameters"
        ),
        "six in a block": lambda *sizes: (0, 0),
    },
    also_right=[counted_by_torch, lambda *sizes: [float(n) for n in my_counts(*sizes)]],
)

# 5. Tied copies

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
        "That is the mean. Used twice, a tensor gets the sum.": "(total) => (total / 2)",
        "The last copy still has the gradient of its own use alone.": "last.grad.copy_ => ",
        "The first copy still has the gradient of its own use alone.": "first.grad.copy_ => ",
        TWICE: ["last.grad.copy_ => last.grad.add_", "first.grad.copy_ => first.grad.add_"],
        "Changed places: each copy now has the gradient of the other use alone.": (
            " + last.grad.to(first.device) => .clone()",
            "first.grad.copy_(total) => first.grad.copy_(last.grad)",
        ),
        "One use's gradient is lost.": [" + last.grad.to(first.device) => ", "first.grad + => "],
        "give both copies the sum": ["grad + => grad -", "grad.copy_(total) => grad = None"],
        GRADIENTS_ONLY: [
            "grad.copy_ => data.copy_",
            "last.grad.copy_(total) => last.grad.copy_(total); last.data.lerp_(first.data, 0.5)",
        ],
        ONE_TENSOR: ["grad.copy_(total) => grad = total", "grad.copy_(total) => grad.data = total"],
    },
    also_right=[
        a_clone_of_the_sum,
        (
            "first.grad.copy_(total) => first.grad = total",
            "last.grad.copy_(total) => last.grad = total.to(last.device).clone()",
        ),
    ],
)
