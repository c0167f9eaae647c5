"""A decoder cut inside its layers is the uncut one, and sends what was predicted."""

import collections
import copy

import pytest
import torch
from processes import printed_by
from torch import distributed, nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import (
    Attention,
    Cache,
    Counted,
    Decoder,
    Message,
    block_messages,
    cached_logits,
    cut_inside,
    generate,
    own_part,
    reduce_from_ranks,
    step_messages,
    sum_whole_gradients,
    vocab_parallel_cross_entropy,
)
from mpcourse.transformer.tensor_parallel import whole_parameters

V, WIDTH, HEADS, LAYERS, T, N = 24, 16, 4, 2, 8, 3
SEQUENCE = pytest.mark.parametrize("sequence", [False, True])


def random_decoder(**options) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(V, WIDTH, HEADS, LAYERS, T, **options).double()
    for parameter in model.parameters():  # what starts at 0 or 1 hides a slip
        nn.init.normal_(parameter, std=0.3)
    return model


def gradients_as_weights(model: Decoder) -> Decoder:
    """Cut like the model, these weights are the parts' gradients."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, original in zip(copied.parameters(), model.parameters(), strict=True):
            parameter.copy_(original.grad)
    return copied


@SEQUENCE
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_forward_and_every_gradient_are_the_uncut_ones(ranks: int, tied: bool, sequence: bool):
    model = random_decoder(tied=tied)
    tokens, targets = torch.randint(V, (2, N, T))
    logits = model(tokens)
    wanted = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    wanted.backward()
    gradients = gradients_as_weights(model)
    assert all(
        p.grad.abs().max() > 1e-6 for name, p in model.named_parameters() if "key.b" not in name
    )

    def program(group):
        cut = cut_inside(model, group, sequence=sequence)
        with Counted() as counted:
            part = cut(tokens)
            loss = vocab_parallel_cross_entropy(part, targets, group)
            loss.backward()
        if sequence:
            sum_whole_gradients(cut, group)
        columns = own_part(V, "tokens", group)
        assert (part - logits[..., columns]).abs().max() < 1e-10
        assert (loss - wanted).abs() < 1e-10
        parts = cut_inside(gradients, group, sequence=sequence)
        pairs = zip(cut.named_parameters(), parts.parameters(), strict=True)
        wrong = {name: (p.grad - g).abs().max() for (name, p), g in pairs}
        assert {name for name, error in wrong.items() if not error < 1e-10} == set()
        return counted

    counted = ranks_in_threads(program, ranks)
    predicted = step_messages(N * T, WIDTH, LAYERS, 8, sequence=sequence) if ranks > 1 else []
    for each in counted:
        assert collections.Counter(each.messages) == collections.Counter(predicted)
        assert each.sent(ranks) == sum(message.sent(ranks) for message in predicted)


def test_bytes_of_a_block_in_numbers():
    """512 tokens of 256 float32 numbers are 524,288 bytes; 4 all-reduces, 2 x 3/4 of each sent."""
    by_sums = block_messages(512, 256, 4, sequence=False)
    assert by_sums == 4 * [Message("all-reduce", 524_288)]
    assert sum(message.sent(4) for message in by_sums) == 3_145_728
    cut = block_messages(512, 256, 4, sequence=True)
    assert len(cut) == 8
    assert sum(message.sent(4) for message in cut) == 3_145_728


def test_messages_are_counted_however_they_are_sent_or_refused():
    def program(group):
        parts, whole = [torch.ones(3) for _ in range(2)], torch.ones(6)
        with Counted() as counted:
            distributed.all_gather(parts, torch.ones(3), group=group)
            distributed.all_gather_into_tensor(whole, torch.ones(3), group=group)
            distributed.reduce_scatter(torch.ones(3), parts, group=group)
            distributed.reduce_scatter_tensor(torch.ones(3), whole, group=group)
            work = group.send([torch.ones(3)], 1 - group.rank(), 0)
            group.recv([torch.ones(3)], 1 - group.rank(), 0).wait()
            work.wait()
            with pytest.raises(NotImplementedError, match=r"c10d.alltoall_base_ is not counted"):
                distributed.all_to_all_single(whole, torch.ones(6), group=group)
        return counted.messages

    wanted = [Message(kind, 24) for kind in ("all-gather", "reduce-scatter") for _ in range(2)]
    assert ranks_in_threads(program, 2) == 2 * [wanted]


def test_each_rank_holds_its_part_and_what_is_whole():
    model = random_decoder()
    held = ranks_in_threads(
        lambda g: (
            sum(p.numel() for p in cut_inside(model, g).parameters()),
            sum(p.numel() for p in whole_parameters(cut_inside(model, g))),
        ),
        2,
    )
    everything = sum(p.numel() for p in model.parameters())
    # positions, five norms of 2 x 16, and two biases of 16 per block
    whole = T * WIDTH + 5 * 2 * WIDTH + LAYERS * 2 * WIDTH
    assert held == 2 * [((everything - whole) // 2 + whole, whole)]


def test_without_the_sum_whole_parameters_learn_from_a_part_of_the_tokens():
    model = random_decoder()
    tokens = torch.randint(V, (N, T))

    def program(group):
        cut = cut_inside(model, group, sequence=True)
        vocab_parallel_cross_entropy(cut(tokens), tokens, group).backward()
        before = cut.head.norm.weight.grad.clone()
        sum_whole_gradients(cut, group)
        return before, cut.head.norm.weight.grad

    (first, summed), (second, also) = ranks_in_threads(program, 2)
    assert not torch.allclose(first, second)
    assert torch.equal(summed, also)
    torch.testing.assert_close(summed, first + second)


@SEQUENCE
def test_dropout_leaves_the_ranks_one_network(sequence: bool):
    """One loss on all ranks; masks are the same on whole tokens, and differ on cut ones."""
    model = random_decoder(dropout=0.5)
    tokens = torch.randint(V, (N, T))

    def program(group):
        cut = cut_inside(model, group, sequence=sequence, seed=5)
        hidden = cut.blocks(cut.embedding(tokens))
        layers = [layer for block in cut.blocks for layer in (block.dropout_1, block.dropout_2)]
        dropped = [layer(torch.ones(64)) for layer in layers]
        return hidden, vocab_parallel_cross_entropy(cut(tokens), tokens, group), dropped

    one, other = ranks_in_threads(program, 2)
    assert one[1] == other[1]
    assert torch.equal(one[0], other[0]) != sequence
    assert torch.equal(one[2][0], other[2][0]) != sequence
    assert len({tuple(mask.tolist()) for mask in one[2]}) == 4  # two blocks, a mask for each place


@pytest.mark.parametrize(
    ("vocabulary", "ranks", "message"),
    [(24, 3, "3 ranks do not divide 4 heads"), (25, 2, "2 ranks do not divide 25 tokens of the")],
)
def test_ranks_that_do_not_divide_are_refused(vocabulary: int, ranks: int, message: str):
    model = Decoder(vocabulary, WIDTH, HEADS, 1, T)
    with pytest.raises(ValueError, match=message):
        ranks_in_threads(lambda group: cut_inside(model, group), ranks, timeout_s=5)


def test_too_many_tokens_are_refused():
    [cut] = ranks_in_threads(lambda group: cut_inside(random_decoder(), group), 1)
    with pytest.raises(ValueError, match="9 tokens in a row; the context holds at most 8"):
        cut.embedding(torch.zeros(1, 9, dtype=torch.long))


def test_modes_and_what_is_frozen_are_kept_and_training_goes_on_as_uncut():
    model = random_decoder(tied=True, dropout=0.5)
    model.embedding.requires_grad_(False)
    model.blocks[0].attention.requires_grad_(False)
    model.blocks[1].mlp.up.bias.requires_grad_(False)
    model.blocks[0].dropout_1.eval()
    model.blocks[1].eval()
    tokens = torch.randint(V, (N, T))

    def program(group):
        cut = cut_inside(model, group)
        assert {n: m.training for n, m in cut.named_modules()} == {
            n: m.training for n, m in model.named_modules()
        }
        assert {n: p.requires_grad for n, p in cut.named_parameters()} == {
            n: p.requires_grad for n, p in model.named_parameters()
        }
        return cut_inside(model.eval(), group)(tokens)

    logits = torch.cat(ranks_in_threads(program, 2), dim=-1)
    torch.testing.assert_close(logits, model(tokens), rtol=0, atol=1e-10)


OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
}


@SEQUENCE
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_with_groups_and_a_scheduler_are_those_of_the_uncut_decoder(
    optimizer: str, sequence: bool
):
    """In the second of four steps a block is thawed, in the third the state is saved and loaded."""
    model = random_decoder(tied=True)
    model.blocks[0].requires_grad_(False)
    start = copy.deepcopy(model)
    batches = torch.randint(V, (4, 2, N, T))

    def train(model: Decoder, lose, group=None) -> Decoder:
        def made():
            ends = [*model.embedding.parameters(), *model.head.norm.parameters()]
            groups = [{"params": ends}, {"params": model.blocks.parameters(), "lr": 0.01}]
            stepped = OPTIMIZERS[optimizer](groups)
            return stepped, torch.optim.lr_scheduler.StepLR(stepped, 1, 0.5)

        stepped, scheduler = made()
        for number, (tokens, targets) in enumerate(batches):
            if number == 1:
                model.blocks[0].requires_grad_(True)
            if number == 2:
                saved = stepped.state_dict(), scheduler.state_dict(), model.state_dict()
                stepped, scheduler = made()
                for made_anew, state in zip((stepped, scheduler, model), saved, strict=True):
                    made_anew.load_state_dict(state)
            stepped.zero_grad()
            lose(model(tokens), targets).backward()
            if group is not None and sequence:
                sum_whole_gradients(model, group)
            stepped.step()
            scheduler.step()
        return model

    train(model, lambda x, y: nn.functional.cross_entropy(x.flatten(0, 1), y.flatten()))

    def program(group):
        cut = cut_inside(start, group, sequence=sequence)
        train(cut, lambda x, y: vocab_parallel_cross_entropy(x, y, group), group)
        wanted = cut_inside(model, group).named_parameters()
        for found, (name, right) in zip(cut.parameters(), wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=0, atol=1e-7, msg=name)

    ranks_in_threads(program, 2)


def test_the_gradient_of_a_gradients_size_is_that_of_the_uncut_decoder():
    model = random_decoder()
    tokens, targets = torch.randint(V, (2, N, T))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    sum(g.square().sum() for g in gradients).backward()
    right = gradients_as_weights(model)

    def program(group):
        cut = cut_inside(model, group)
        whole = {id(parameter) for parameter in whole_parameters(cut)}
        loss = vocab_parallel_cross_entropy(cut(tokens), targets, group)
        gradients = torch.autograd.grad(loss, [*cut.parameters()], create_graph=True)
        sizes = [g.square().sum() for g in gradients]
        pairs = [*zip(sizes, cut.parameters(), strict=True)]
        parts = reduce_from_ranks(sum(s for s, p in pairs if id(p) not in whole), group)
        (parts + sum(s for s, p in pairs if id(p) in whole)).backward()
        for found, wanted in zip(
            cut.parameters(), cut_inside(right, group).parameters(), strict=True
        ):
            torch.testing.assert_close(found.grad, wanted.detach(), rtol=0, atol=1e-10)

    ranks_in_threads(program, 2)


def test_a_cache_of_a_cut_decoder_holds_its_heads():
    model, tokens = random_decoder(), torch.randint(V, (N, T))

    def program(group):
        cut, cache = cut_inside(model, group), Cache()
        parts = [cached_logits(cut, part, cache) for part in tokens.split([5, 3], dim=1)]
        logits = torch.cat(parts, 1)
        (logits.sum() / group.size()).backward()
        assert cache.num_bytes == 2 * LAYERS * N * T * WIDTH * 8 / group.size()
        return logits, cut.blocks[0].norm_1.weight.grad

    (first, one), (second, other) = ranks_in_threads(program, 2)
    torch.testing.assert_close(torch.cat([first, second], -1), model(tokens), rtol=0, atol=1e-10)
    assert torch.equal(one, other)
    with pytest.raises(ValueError, match="each rank of a cut decoder scores its own tokens"):
        ranks_in_threads(lambda group: generate(cut_inside(model, group), tokens, 1), 2)


class Louder(Attention):
    pass


def changed(change) -> Decoder:
    model = random_decoder()
    change(model)
    return model


def in_place_of(path: str, module: nn.Module):
    return lambda model: model.set_submodule(path, module)


REFUSED = {
    "an attention of its own": (
        lambda m: setattr(m.blocks[1].attention, "__class__", Louder),
        "plain Attention without hooks can be cut; got Louder",
    ),
    "a hook on attention": (
        lambda m: m.blocks[0].attention.register_forward_hook(lambda *_: None),
        "plain Attention without hooks can be cut; got Attention with hooks",
    ),
    "a hook on the embedding": (
        lambda m: m.embedding.register_forward_pre_hook(lambda *_: None),
        "plain Embedding without hooks can be cut; got Embedding with hooks",
    ),
    "no dropout": (
        in_place_of("blocks.1.dropout_2", nn.Identity()),
        "plain Dropout without hooks can be cut; got Identity",
    ),
    "a quantized head": (
        in_place_of("head.output", nn.Identity()),
        "plain Linear without hooks can be cut; got Identity",
    ),
    "two blocks in one": (
        lambda m: m.blocks.__setitem__(1, m.blocks[0]),
        r"blocks.1.norm_1.weight is used under another name, too; only tied ends can be cut",
    ),
    "a gradient hook": (
        lambda m: m.blocks[0].mlp.up.weight.register_hook(torch.clone),
        r"blocks.0.mlp.up.weight has gradient hooks, and its part would not",
    ),
    "a gradient hook on what stays whole": (
        lambda m: m.head.norm.bias.register_post_accumulate_grad_hook(print),
        r"head.norm.bias has gradient hooks, and its part would not",
    ),
    "positions with a norm": (
        lambda m: setattr(m.embedding.positions, "max_norm", 1.0),
        "an embedding with max_norm=1.0 cannot be cut",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_decoder_that_would_lose_something_is_refused(case: str):
    change, problem = REFUSED[case]
    model = changed(change)
    with pytest.raises(ValueError, match=problem):
        ranks_in_threads(lambda group: cut_inside(model, group), 2)


def test_what_is_cut_is_not_cut_again_nor_summed_where_it_is_whole():
    def program(group):
        cut = cut_inside(random_decoder(), group)
        with pytest.raises(ValueError, match="these gradients are whole"):
            sum_whole_gradients(cut, group)
        with pytest.raises(ValueError, match="can be cut; got _CutEmbedding"):
            cut_inside(cut, group)
        return True

    assert all(ranks_in_threads(program, 2))


WITHOUT_A_GROUP = """
import torch
from torch import distributed, nn
from mpcourse.benchmark.tensor_parallel import measure
from mpcourse.transformer import Counted, Decoder, cut_inside, step_messages
from mpcourse.transformer import sum_whole_gradients, vocab_parallel_cross_entropy
distributed.init_process_group("gloo")
ranks = distributed.get_world_size()
torch.manual_seed(0)
model = Decoder(64, 32, 4, 2, 16).double()
tokens = torch.randint(64, (4, 16))
right = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1).flatten())
right.backward()
for sequence in (False, True):
    cut = cut_inside(model, sequence=sequence)
    with Counted() as counted:
        loss = vocab_parallel_cross_entropy(cut(tokens), tokens.roll(1))
        loss.backward()
    predicted = step_messages(tokens.numel(), 32, 2, 8, sequence=sequence)
    assert counted.sent(ranks) == sum(message.sent(ranks) for message in predicted) > 0
    if sequence:
        sum_whole_gradients(cut)
    torch.testing.assert_close(loss.detach(), right.detach(), rtol=0, atol=1e-10)
    gradients = [parameter.grad for parameter in cut.parameters()]
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(parameter.grad)
wanted = [parameter.detach() for parameter in cut_inside(model).parameters()]
torch.testing.assert_close(gradients, wanted, rtol=0, atol=1e-10)
print(len(measure(torch.device("cpu"), 64, 64, 1)))  # it asserts that torch's block is ours
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_in_processes_it_is_the_uncut_decoder_and_torchs_block(ranks: int):
    assert printed_by(WITHOUT_A_GROUP, ranks) == ranks * ["3"]
