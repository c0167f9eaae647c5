"""Exercises of page `a_transformer`: mask, attention, decoder, tied copies."""

from functools import partial

import torch
import torch._dynamo  # fake tensors need it: seconds that no attempt is to be charged for
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from mpcourse.devices.devices import usable_gpus
from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, refuse_borrowed, same
from mpcourse.splitting.placement import works_on_a_gpu
from mpcourse.transformer import Attention, Decoder

# 1. What a token sees


def my_causal_weights(scores):
    """Hide what comes after before the softmax: exp(-inf) is 0. So what is left sums to 1."""
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


def torch_weights(scores):
    """The weights that torch's own attention makes of scores."""
    whole = torch.eye(scores.shape[-1], dtype=scores.dtype).expand(scores.shape)
    return sdpa(scores, whole, whole, is_causal=True, scale=1.0)


NO_GRADIENTS = "Right, but the page trains with it: return a tensor that gradients flow through."
SOME_GRADIENTS = "Right, but training needs gradients in all that takes part: detach nothing."
KEPT = "What is handed in has to stay as it is: `q = q / ...`, not `q /= ...`."
FILLED = (
    "The scores that are handed in have to stay as they are: `masked_fill`, not `masked_fill_`."
)
ON_A_GPU = (
    "On a GPU this raises: make new tensors on the device of what comes in, `device=x.device`."
)
ROUNDED = "Right up to the rounding of float32: compute in the dtype of what comes in."


def same_gradients(result, expected, leaves):
    """Up to the rounding of float32, of the sum of squares; what takes no part gets zeros."""
    both = [
        torch.autograd.grad(each.square().sum(), leaves, retain_graph=True, materialize_grads=True)
        for each in (result, expected)
    ]
    return all(torch.allclose(*pair, 1e-3, 1e-4) for pair in zip(*both, strict=True))


def training(solution):
    """What comes in needs gradients, and what is right must hand them back."""

    def play(attempt, *given):
        leaves = [each.requires_grad_() for each in given]
        given = [each * 1 for each in leaves]  # may be changed in place
        result, expected = attempt(*given), solution(*given)
        if not same_weights(result, expected):
            return result
        if not getattr(result, "requires_grad", False):
            raise NotYet(NO_GRADIENTS)
        if not same_gradients(result, expected, leaves):
            raise NotYet(SOME_GRADIENTS)
        if result.ndim > 3:  # the last case
            if result.dtype != expected.dtype or not torch.allclose(result, expected, 1e-9, 1e-9):
                raise NotYet(ROUNDED)
        return result

    return play


def keeping(attempt, words):
    """The attempt; if it changes what it is given, these words say so."""

    def kept(*given):
        before = [each.detach().clone() for each in given]
        result = attempt(*given)
        if not same([*given], before):
            raise NotYet(words)
        return result

    return kept


def also_on_a_gpu(attempt, scores):
    result = training(torch_weights)(keeping(attempt, FILLED), scores)
    if scores.ndim > 3 and same_weights(result, torch_weights(scores)):  # the last case
        refuse_hosts_tensors(attempt, scores)
    return result


def refuse_hosts_tensors(attempt, *given):
    """Refuse what makes a tensor on the CPU for others that lie on a GPU, here a pretended one."""
    detached = (each.detach() if isinstance(each, torch.Tensor) else each for each in given)
    if not works_on_a_gpu(attempt, *detached):
        raise NotYet(ON_A_GPU)


WRONG_WEIGHTS = {
    "Nothing is hidden: the first token sees the last one.": lambda s: s.softmax(-1),
    "A token sees itself, too: the first row has nothing left.": "triu(1) => triu(0)",
    "The columns sum to 1, not the rows: take the softmax along -1.": "-1 => -2",
    "Hidden after the softmax: a row no longer sums to 1.": lambda s: s.softmax(-1).tril(),
    "The wrong half is hidden: a token sees what comes, not what was.": "triu(1) => tril(-1)",
    "A hidden score of 0 is a score like others: exp(0) is 1.": 'float("-inf") => 0.0',
    "Plus infinity is the highest score there is; fill in -inf.": 'float("-inf") => float("inf")',
}


def row_by_row(scores):
    weights = torch.zeros_like(scores)
    for row in range(scores.shape[-1]):
        weights[..., row, : row + 1] = scores[..., row, : row + 1].softmax(-1)
    return weights


check_causal = Exercise(
    my_causal_weights,
    read_again='"What may a token see?"',
    cases=[
        table_of_scores(3),
        (torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.double),),
        table_of_scores(4, plus=-5000.0),
        table_of_scores(4, plus=-9e4),
        table_of_scores(2, plus=1000.0),
        (torch.tensor([[0.0, 9e4], [0.0, 0.0]], dtype=torch.double),),
        (torch.tensor([[0.0, 0.0], [9e4, 9e4]], dtype=torch.double),),
        table_of_scores(4, in_front=(3, 3)),
    ],
    given=lambda scores: f"scores {tuple(scores.shape)}, about {round(scores.mean().item())}",
    play=also_on_a_gpu,
    same=same_weights,
    hint="Put -inf where a token must not look, before the softmax along the last dimension; "
    "`scores.shape[-1]` counts tokens, whatever stands in front.",
    errors={
        "boolean": "A mask is true or false: make it with `dtype=torch.bool`, or take `mask == 1`.",
        "size|shape|dimension|too many (values|indices)": "Other dimensions may stand in front: "
        "`scores.shape[-1]` counts tokens, and `scores[..., i, j]` is one score.",
    },
    wrong={
        "Scores may be lower than that: only -inf hides whatever they are.": [
            f'float("-inf") => {low}' for low in (-100.0, -1e4)
        ],
        "A mask is true or false": "dtype=torch.bool => dtype=scores.dtype",
        "`scores.shape[-1]` counts": "ones_like(scores => ones(len(scores), len(scores)",
        "Weights depend on the scores; equal ones are right only where the scores are equal.": (
            lambda s: (m := torch.ones_like(s).tril()) / m.sum(-1, keepdim=True)
        ),
        "A hidden score of 90000 takes everything: hide before the softmax, not after.": [
            lambda s: s.softmax(-1).tril() / s.softmax(-1).tril().sum(-1, keepdim=True),
            lambda s: (e := (s - s.max()).exp().tril()) / e.sum(-1, keepdim=True),
        ],
        "A score may be 0: make the mask of places, not of the scores' own values.": [
            f"torch.ones_like(scores, dtype=torch.bool).triu(1) => scores.{mask}"
            for mask in ("triu(1) != 0", "tril() == 0")
        ],
        "exp of -5000 is 0, of 1000 inf: `softmax` takes the largest score off first.": (
            lambda s: s.exp().tril() / s.exp().tril().sum(-1, keepdim=True)
        ),
        **WRONG_WEIGHTS,
        "The softmax is missing: it makes weights of what is left.": ".softmax(dim=-1) => ",
        "`masked_fill` fills where the mask is true: for what comes after.": "triu(1) => tril()",
        "Once is enough: a second softmax makes other weights.": "dim=-1) => -1).softmax(-1)",
        "These are logarithms: `softmax` itself returns the weights.": ".softmax => .log_softmax",
        "Rows may lie far apart: take off the largest score of each row, not of all.": (
            "return scores => s = scores",
            ".softmax(dim=-1) => \n    return (e := (s - s.max()).exp()) / e.sum(-1, keepdim=True)",
        ),
        "0 times -inf is nan: fill in -inf, do not multiply by it.": [
            f'scores.masked_fill(ahead, float("-inf")){end} => (scores + ahead * float("-inf"))'
            for end in ("", ".softmax(dim=-1)")
        ],
        "Rows lie along the last dimension, -1, however many stand in front.": "dim=-1 => dim=1",
        "Each token sees the next one, too, which it has to predict.": "triu(1) => triu(2)",
        ON_A_GPU: "torch.ones_like(scores, => torch.ones(scores.shape,",
        NO_GRADIENTS: "dim=-1) => -1).detach()",
        ROUNDED: "dim=-1) => -1).float()",
        "In float32, scores of 90000 lose digits: compute in the dtype of what comes in.": (
            "scores.masked_fill => scores.float().masked_fill"
        ),
        "Cut off at a limit, unlike scores become equal: `softmax` stands large ones.": (
            "scores.masked_fill => scores.clamp(-80, 80).masked_fill"
        ),
        FILLED: "masked_fill => masked_fill_",
    },
    also_right=[
        row_by_row,
        lambda s: torch.where(torch.ones_like(s, dtype=torch.bool).tril(), s, -torch.inf).softmax(
            -1
        ),
    ],
)

# 2. Attention

causal_weights = my_causal_weights  # as the page calls it


def my_attend(query, key, value):
    """Score each query by each key, make weights of each row. The values are summed by them."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return causal_weights(scores) @ value


def attending(weights):
    return lambda query, key, value: weights(query @ key.mT / query.shape[-1] ** 0.5) @ value


def by_hand(attempt, *three):
    result = training(partial(sdpa, is_causal=True))(keeping(attempt, KEPT), *three)
    if same_weights(result, sdpa(*three, is_causal=True)):
        if three[0].ndim > 3:  # the last cases
            refuse_hosts_tensors(attempt, *three)
        # by their names in torch, in the package and on the page
        borrowing = {"scaled_dot_product_attention", "sdpa", "attention_weights", "attend"}
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
    hint="Products of queries and keys, divided by a root; `causal_weights`; times the values.",
    errors={
        "size|shape|imension|T` ": "Other dimensions may stand in front: `transpose(-2, -1)` "
        "turns the keys, `query.shape[-2]` counts tokens, `query.shape[-1]` columns."
    },
    wrong={
        "Divide the scores by the square root of `columns`: `** 0.5`.": [
            " / query.shape[-1] ** 0.5 => ",
            " ** 0.5 => ",
        ],
        "Divide by the root; this multiplies.": "/ query => * query",
        "The root of how many numbers a query has: not of the tokens, and no fixed number.": [
            f"query.shape[-1] => {other}" for other in ("query.shape[-2]", "query.shape[1]", 64)
        ],
        "`causal_weights` takes the softmax already: once is enough.": [
            f"weights(scores) => weights(scores{twice}"
            for twice in (").softmax(-1)", ".softmax(-1))")
        ],
        "No softmax: `causal_weights` makes weights of the scores.": (
            "causal_weights(scores) => scores.tril()"
        ),
        "The values are missing: these are weights or scores.": " @ value => ",
        "Keys are for being found. A token collects values.": " @ value => @ key",
        "A query is for looking. A token collects values.": " @ value => @ query",
        "A row of scores belongs to a query: queries times turned keys.": [
            f"query @ key.transpose => {other}.transpose"
            for other in ("key @ query", "query @ query", "key @ key", "query @ value")
        ],
        "A score is a query times a key: turn the table of keys.": ".transpose(-2, -1) => ",
        "A score is a dot product, a sum over columns: `@`, not `*`.": (
            "query @ key.transpose(-2, -1) => query * key"
        ),
        "The root divides the scores, before `causal_weights`.": (
            " / query.shape[-1] ** 0.5 => ",
            " @ value => / query.shape[-1] ** 0.5 @ value",
        ),
        "Weights times values is a product of matrices: `@`.": " @ value => * value",
        "A row of weights belongs to the token that looks: weights times values, unturned.": [
            "(scores) @ value => (scores).mT @ value",
            "causal_weights(scores) @ value => value @ causal_weights(scores)",
        ],
        "the work: write scores": [
            lambda *qkv: sdpa(*qkv, is_causal=True),
            lambda *qkv: nn.functional.scaled_dot_product_attention(*qkv, is_causal=True),
        ],
        "`transpose(-2, -1)` turns": "transpose(-2, -1) => transpose(0, 1)",
        **{
            words: attending(check_causal.answer(answer)) for words, answer in WRONG_WEIGHTS.items()
        },
        KEPT: [
            (
                " / query.shape[-1] ** 0.5 => ",
                "scores = query => query /= query.shape[-1] ** 0.5\n    scores = query",
            ),
            "scores = query => key *= 2\n    scores = query / 2",
        ],
        ON_A_GPU: lambda query, key, value: (
            (query @ key.mT / query.shape[-1] ** 0.5)
            .masked_fill(torch.ones(query.shape[-2], query.shape[-2]).triu(1) > 0, -float("inf"))
            .softmax(-1)
            @ value
        ),
        NO_GRADIENTS: "causal_weights(scores) @ value => (causal_weights(scores) @ value).detach()",
        SOME_GRADIENTS: [
            "weights(scores) => weights(scores.detach())",
            "query @ key => query.detach() @ key",
            "query @ key => query @ key.detach()",
            "@ value => @ value.detach()",
        ],
    },
    also_right=[attending(row_by_row)],
)

# 3. All heads at once


def my_attention(x, four_layers, heads, look=my_attend):
    """Each head has neighbouring columns. Tokens and heads change places before and after."""
    *inputs, output = four_layers
    split = [layer(x).unflatten(-1, (heads, -1)) for layer in inputs]  # (N, T, heads, columns)
    query, key, value = (part.transpose(-3, -2) for part in split)  # (N, heads, T, columns)
    return output(look(query, key, value).transpose(-3, -2).flatten(-2))  # (N, T, width)


def with_heads(attempt, texts, tokens, heads, look):
    """The outputs of layers made for this case; `look` has to be called once, for all heads."""
    torch.default_generator.manual_seed(heads)
    module, x = Attention(12, heads).double(), torch.randn(texts, tokens, 12, dtype=torch.double)
    layers, calls = (module.query, module.key, module.value, module.output), []

    def counted(query, key, value):
        calls.append([tuple(each.shape) for each in (query, key, value)])
        return sdpa(query, key, value, is_causal=True) if look == "attend" else value

    result, shape = attempt(x, layers, heads, counted), (texts, heads, tokens, 12 // heads)
    if result is not ... and calls != [[shape] * 3]:
        got = f"{len(calls)} calls, the first with {calls[0]}" if calls else "no call"
        raise NotYet(
            f"got {got}", f"Call `look` once, with three of (N, heads, T, columns): {shape}."
        )
    expected = module(x) if look == "attend" else module.output(module.value(x))
    if not same_weights(result, expected):
        return result
    if not getattr(result, "requires_grad", False):
        raise NotYet(NO_GRADIENTS)
    if not same_gradients(result, expected, [*module.parameters()]):
        raise NotYet(SOME_GRADIENTS)
    return result


JOINED = ".transpose(-3, -2).flatten(-2)"
check_heads = Exercise(
    my_attention,
    read_again='"All heads at once"',
    cases=[
        (2, 5, 1, "own_value"),
        (2, 7, 3, "own_value"),
        (2, 5, 1, "attend"),
        (2, 7, 3, "attend"),
        (1, 4, 4, "attend"),
    ],
    given="texts: {}, tokens: {}, heads: {}, look: {}",
    play=with_heads,
    same=same_weights,
    hint="Call each layer: it adds a bias. Cut what query, key and value make into heads, "
    "let tokens and heads change places, call `look`, turn back, join, and call the output layer.",
    errors={
        "size|shape|dimension|view": "`unflatten(-1, (heads, -1))` cuts the width, `flatten(-2)` "
        "joins it again; `transpose(-3, -2)` stands between."
    },
    wrong={
        "The output layer is missing: it mixes what the heads have found.": "output(look => (look",
        "The layers are query, key, value and output, in this order.": [
            "*inputs, output = four_layers => output, *inputs = four_layers",
            "query, key, value = ( => value, key, query = (",
        ],
        "`look` returns heads before tokens: let them change places back, then join.": (
            f"{JOINED} => .reshape(x.shape)"
        ),
        "three of (N, heads, T, columns)": [
            ("part.transpose(-3, -2) for => part for", f"{JOINED} => .flatten(-2)"),
            lambda x, layers, heads, look: layers[-1](look(*(each(x) for each in layers[:3]))),
        ],
        "`reshape` alone mixes tokens: cut with `unflatten`, then `transpose`.": [
            ("part.transpose(-3, -2) => part.reshape(len(x), heads, x.shape[1], -1)"),
            (
                "part.transpose(-3, -2) => part.reshape(len(x), heads, x.shape[1], -1)",
                f"{JOINED} => .reshape(x.shape)",
            ),
        ],
        "A query looks, a key is found: the order is query, key, value.": (
            "look(query, key, value) => look(key, query, value)"
        ),
        "A head's columns are neighbours: `unflatten(-1, (heads, -1))`.": [
            (
                strewn := "(part.transpose(-3, -2) => (part.reshape(len(x), x.shape[1], -1, heads)"
                ".permute(0, 3, 1, 2)",
                f"{JOINED} => .permute(0, 2, 3, 1).flatten(-2)",
            ),
            strewn,
        ],
        "A token hands over its value, and here its key: the order is query, key, value.": (
            "query, key, value = ( => query, value, key = ("
        ),
        "The third layer makes the values of x; here x itself is handed over.": (
            "for layer in inputs] => for layer in (*inputs[:2], nn.Identity())]"
        ),
        "Heads stand side by side; here they are averaged.": (
            f"{JOINED} => .mean(-3).repeat(1, 1, heads)"
        ),
        "Joined side by side: first all columns of one head, then those of the next.": (
            f"{JOINED} => .permute(0, 2, 3, 1).flatten(-2)"
        ),
        "The block adds x, and not here.": "return output => return x + output",
        "The root is taken in `look`.": "query, key, value = ( => query, key, value = (0.5 *",
        NO_GRADIENTS: torch.no_grad()(my_attention),
        SOME_GRADIENTS: "layer(x).unflatten => layer(x.detach()).detach().unflatten",
    },
    also_right=[
        "-3, -2 => 1, 2",
        lambda x, layers, heads, look: layers[3](
            torch.cat(
                look(*(torch.stack(each(x).chunk(heads, -1), 1) for each in layers[:3])).unbind(1),
                -1,
            )
        ),
    ],
)

# 4. A decoder of its parts

UNCALLED = "Call the parts in the table; what holds several of them (the model, a block, "
UNCALLED += "`model.embedding`, `model.head`) stays uncalled."
NORM_FIRST = "A norm takes (N, T, width): add both rows, and norm before the output layer."
OLD_X = "Right, but backward raises: LayerNorm still needs the old x: `x = x + …`, not `x += …`."


def my_logits(model, tokens):
    """What a token is and where it stands; then each block adds to the residual stream, twice.

    What flows on is never normed itself: only what attention and MLP read of it.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    x = model.embedding.tokens(tokens) + model.embedding.positions(places)
    for block in model.blocks:
        x = x + block.attention(block.norm_1(x))
        x = x + block.mlp(block.norm_2(x))
    return model.head.output(model.head.norm(x))


def of_a_decoder(attempt, layers, texts, places):
    torch.default_generator.manual_seed(layers)
    model = Decoder(3, 12, 3, layers, context=6).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    if layers == 3:  # whatever attention is, it is called
        model.blocks[1].attention = nn.Linear(12, 12).double()
    tokens = torch.randint(3, (texts, places))
    expected = model(tokens)
    for whole in (model, model.blocks, *model.blocks, model.embedding, model.head):
        whole.forward = refuse_the_whole
    result = attempt(model, tokens)
    if not same(result, expected):
        return result
    if not getattr(result, "requires_grad", False):
        raise NotYet(NO_GRADIENTS)
    try:
        trains = same_gradients(result, expected, [*model.parameters()])
    except RuntimeError as error:
        raise NotYet(OLD_X) if "inplace" in str(error) else error from None
    if not trains:
        raise NotYet(SOME_GRADIENTS)
    if layers == 3:  # the last case
        refuse_hosts_tensors(attempt, model, tokens)
    return result


def refuse_the_whole(*given, **options):
    raise NotYet(UNCALLED)


check_logits = Exercise(
    my_logits,
    read_again='"Put together: the decoder"',
    cases=[(0, 1, 2), (1, 1, 3), (3, 2, 6)],
    given="number of blocks: {}, texts: {}, tokens in each: {}",
    play=of_a_decoder,
    hint="Embed and add positions; for each block add attention, then MLP, each of a normed input; "
    "then the last norm and the output.",
    correct="Its logits are the package's own.",
    errors={
        r"index -?\d+ is out": "All blocks take part, one after the other. There may be none.",
        "normalized_shape": NORM_FIRST,
        "must match|ind(ex|ices)": "Call the table of positions with the places 0 to T - 1.",
    },
    wrong={
        UNCALLED: [
            lambda model, tokens: model(tokens),
            "x + block.attention(block.norm_1(x)) => block(x)",
        ],
        "Where a token stands is missing: add `model.embedding.positions` of 0, 1, 2, ...": (
            " + model.embedding.positions(places) => "
        ),
        "Each token got the row of place 0: places run along `tokens.shape[1]`, texts along 0.": [
            "shape[1] => shape[0]",
            "torch.arange(tokens.shape[1], => torch.zeros(tokens.shape[1], dtype=torch.long,",
        ],
        "Blocks run in their own order: `for block in model.blocks`.": (
            "in model.blocks => in model.blocks[::-1]"
        ),
        "A score for each possible next token is asked for, not the number of the likeliest one.": (
            "head.norm(x)) => head.norm(x)).argmax(-1)"
        ),
        "The norm comes before attention and MLP; their sums flow on as they are.": (
            "x + block.attention(block.norm_1( => block.norm_1(x + block.attention(",
            "x + block.mlp(block.norm_2( => block.norm_2(x + block.mlp(",
        ),
        "Each part adds to x: `x = x + ...`. Here x is lost.": [
            *(lost := ("x + block.attention => block.attention", "x + block.mlp => block.mlp")),
            lost,
        ],
        "Attention and MLP read a normed x: `block.norm_1(x)` and `block.norm_2(x)`.": [
            *(plain := ("block.norm_1(x) => x", "block.norm_2(x) => x")),
            plain,
            (
                "block.attention(block.norm_1(x)) => block.norm_1(block.attention(x))",
                "block.mlp(block.norm_2(x)) => block.norm_2(block.mlp(x))",
            ),
        ],
        "`norm_1` belongs to attention, `norm_2` to the MLP.": [
            "norm_2 => norm_1",
            "norm_1 => norm_2",
            ("norm_1 => norm_x", "norm_2 => norm_1", "norm_x => norm_2"),
        ],
        "Attention and MLP take turns in one loop, block by block.": (
            "        x = x + block.mlp =>     for block in model.blocks:\n        x = x + block.mlp"
        ),
        NORM_FIRST: [
            "model.head.output(model.head.norm(x)) => model.head.norm(model.head.output(x))",
            "(tokens) + model.embedding.positions(places) => (tokens).repeat(1, 1, 2)",
        ],
        "Attention comes first, then the MLP.": (
            "attention(block.norm_1 => x(block.norm_x",
            "mlp(block.norm_2 => attention(block.norm_1",
            "x(block.norm_x => mlp(block.norm_2",
        ),
        "All blocks take part, one after the other.": [
            f"in model.blocks => in {few}"
            for few in ("model.blocks[:1]", "model.blocks[:2]", "[model.blocks[0]]", "()")
        ],
        "Each turn has a block of its own: call the loop's `block`.": [
            f"x = x + block.attention => block = model.blocks[{one}]; x = x + block.attention"
            for one in (0, -1)
        ],
        "The last norm comes once, behind the loop: `model.head.norm` before the output layer.": (
            "model.head.norm(x) => x"
        ),
        "with the places 0 to T - 1": [
            ".positions(places) => .positions.weight",
            ".positions(places) => .positions(tokens.shape[1])",
            "arange(tokens.shape[1] => arange(tokens.numel()",
        ],
        "`return` comes once, behind the loop over the blocks.": "    return =>         return",
        "`positions` was asked for tokens: ask for places 0, 1, 2, ...": "(places) => (tokens)",
        "Ask `positions` for all places, 0 to T - 1, not for the last one alone.": (
            "arange(tokens.shape[1], => tensor(tokens.shape[1] - 1,"
        ),
        "Both rows are added, not multiplied.": "(tokens) + model => (tokens) * model",
        "The output layer is missing: `model.head.output` makes logits of what was normed.": (
            "model.head.output(model.head.norm(x)) => model.head.norm(x)"
        ),
        "The MLP is missing: a block adds twice.": "x = x + block.mlp(block.norm_2(x)) => pass",
        "A block adds to x twice: what attention gives, then what the MLP gives.": (
            "x = x + block.attention => y = block.attention",
            "norm_2(x) => norm_2(y)",
        ),
        "The MLP adds to x after attention; here what attention gave is lost.": (
            "x = x + block.attention => y = x + block.attention",
            "norm_2(x) => norm_2(y)",
        ),
        "The first place is 0.": "arange(tokens.shape[1], => arange(1, tokens.shape[1] + 1,",
        "Only what a part reads is normed; here x itself is: `x = x + part(norm(x))`.": (
            "x + block.attention(block.norm_1(x)) => (h := block.norm_1(x)) + block.attention(h)",
            "x + block.mlp(block.norm_2(x)) => (h := block.norm_2(x)) + block.mlp(h)",
        ),
        "The MLP reads x after attention has added to it.": [
            (
                "x = x + block.attention => y = x + block.attention",
                "x = x + block.mlp => x = y + block.mlp",
            ),
            (
                "x = x + block.attention(block.norm_1(x)) => y = block.norm_1(x)",
                "x + block.mlp(block.norm_2(x)) => x + block.attention(y) + block.mlp(y)",
            ),
        ],
        "Logits are scores: the loss takes the softmax itself.": [
            f"head.norm(x)) => head.norm(x)).{softmax}(-1)"
            for softmax in ("softmax", "log_softmax")
        ],
        "Every place has logits, not the last alone.": "norm(x)) => norm(x))[:, -1]",
        ON_A_GPU: ", device=tokens.device => ",
        NO_GRADIENTS: torch.no_grad()(my_logits),
        OLD_X: [
            "x = x + block.attention => x += block.attention",
            "x = x + block.mlp => x += block.mlp",
        ],
        SOME_GRADIENTS: [
            f"{part} => {part}.detach()"
            for part in ("positions(places)", "tokens(tokens)", "norm_1(x)", "norm_2(x)")
        ],
    },
    also_right=[
        "(places) => (places.expand_as(tokens))",
        " + model.embedding.positions => \n    x += model.embedding.positions",
    ],
)

# 5. Tied copies


@torch.no_grad()
def my_mend(first, last):
    """Both copies get the sum of both gradients. It is made once, before either changes."""
    total = first.grad + last.grad.to(first.device)
    first.grad.copy_(total)
    last.grad.copy_(total)


BOTH_HERE, APART = "both on the CPU", "the last on a GPU if there is one"


def with_two_copies(attempt, of_first, of_last, places):
    """Both gradients after the attempt, which may keep the stub's last line."""
    if places == APART and (gpus := usable_gpus()):
        of_last = of_last.to(f"cuda:{gpus[0]}")
    # unequal, so that a copied weight is seen
    first, last = nn.Parameter(torch.ones_like(of_first)), nn.Parameter(torch.zeros_like(of_last))
    first.grad, last.grad = of_first.clone(), of_last.clone()
    own = getattr(attempt, "__wrapped__", attempt)  # without the check's refusal of `...`
    result = own(first, last)
    if result is ... and same([first.grad, last.grad], [of_first, of_last]):
        raise NotAttempted
    if not same([first, last], [torch.ones_like(of_first), torch.zeros_like(of_last)]):
        raise NotYet("The copies themselves were changed: change `.grad` alone.")
    both = [grad.data_ptr() for grad in (first.grad, last.grad) if grad is not None]
    if len(both) == 2 and both[0] == both[1]:
        raise NotYet("One gradient tensor for both: clipping would scale it twice.")
    return [first.grad, last.grad]


check_tied = Exercise(
    my_mend,
    read_again='"One tensor, two devices?"',
    cases=[
        (torch.tensor([[0.5, -1.25]]), torch.tensor([[-2.0, 0.75]]), places)
        for places in (BOTH_HERE, APART)
    ],
    given="gradients {0.data} and {1.data}, {2}",
    play=with_two_copies,
    hint="Add both gradients once. Then both `.grad` hold this sum: not 0, None or its double.",
    correct="Both copies have the sum, and so take the same step. Two devices are tested only "
    "where there is a GPU: does your sum bring both gradients to one, with `.to(...)`?",
    errors={
        "a leaf Variable": "A copy's own numbers stay; its `first.grad` or `last.grad` changes."
    },
    wrong={
        "Both gradients are as they were: `x = x + y` changes no tensor.": lambda *_: None,
        "That is the mean. Used twice, a tensor gets the sum.": "(total) => (total / 2)",
        "The last copy still has the gradient of its own use alone.": "last.grad.copy_ => ",
        "The first copy still has the gradient of its own use alone.": "first.grad.copy_ => ",
        "The second sum took in the first: add up once.": [
            "last.grad.copy_ => last.grad.add_",
            "first.grad.copy_ => first.grad.add_",
        ],
        "The sum takes the place of each gradient; here it was added to it.": (
            "first.grad.copy_ => first.grad.add_",
            "last.grad.copy_ => last.grad.add_",
        ),
        "One gradient was copied over the other: both copies need the sum.": [
            "first.grad + last.grad.to(first.device) => first.grad.clone()",
            "first.grad + last.grad.to(first.device) => last.grad.to(first.device).clone()",
        ],
        "The larger of the two numbers was taken: both copies need the sum.": (
            "first.grad + last.grad.to(first.device) => torch.maximum(first.grad, last.grad)"
        ),
        "The gradients changed places: both copies need the sum.": (
            "first.grad.copy_(total) => first.grad, last.grad = last.grad, first.grad",
            "last.grad.copy_(total) => ",
        ),
        "change `.grad` alone": [
            "grad.copy_ => data.copy_",
            torch.no_grad()(lambda first, last: last.copy_(first)),
        ],
        "The copies were added up, not their gradients: `first.grad`, `last.grad`.": (
            "first.grad + last.grad.to(first.device) => first + last.to(first.device)"
        ),
        "A copy's own numbers stay": lambda first, last: last.copy_(first),
        "One gradient tensor for both": "grad.copy_(total) => grad = total",
    },
    also_right=[
        (
            "first.grad.copy_(total) => first.grad = total",
            "last.grad.copy_(total) => last.grad = total.to(last.device, copy=True); return ...",
        )
    ],
)
