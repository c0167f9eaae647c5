import copy
from pathlib import Path

import pytest
import torch
from cut_decoders import LAYERS, WIDTH, N, T, V, check_cut_step, random_decoder, uncut_loss
from processes import printed_by
from torch import distributed, nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import (
    Attention,
    Counted,
    Decoder,
    Message,
    cut_inside,
    sum_whole_gradients,
    vocab_parallel_cross_entropy,
)

SEQUENCE = pytest.mark.parametrize("sequence", [False, True])


@SEQUENCE
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_forward_and_every_gradient_are_the_uncut_ones(ranks: int, tied: bool, sequence: bool):
    """Each rank holds its share of all but positions, norms, and two biases of a block."""
    model = random_decoder(tied=tied)
    tokens, targets = torch.randint(V, (2, N, T))
    uncut_loss(model, tokens, targets).backward()
    assert all(
        p.grad.abs().max() > 1e-6 for name, p in model.named_parameters() if "key.b" not in name
    )

    def program(group):
        check_cut_step(model, tokens, targets, group, sequence)
        return sum(p.numel() for p in cut_inside(model, group, sequence=sequence).parameters())

    everything = sum(p.numel() for p in model.parameters())
    whole = T * WIDTH + (2 * LAYERS + 1) * 2 * WIDTH + LAYERS * 2 * WIDTH
    assert ranks_in_threads(program, ranks) == ranks * [(everything - whole) // ranks + whole]


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
            with pytest.raises(NotImplementedError, match=r"c10d.alltoall_ is not counted"):
                distributed.all_to_all(parts, [torch.ones(3), torch.ones(3)], group=group)
        return counted.messages

    wanted = [Message(kind, 24) for kind in ("all-gather", "reduce-scatter") for _ in range(2)]
    wanted.append(Message("send", 12))
    assert ranks_in_threads(program, 2) == 2 * [wanted]


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


def test_modes_and_what_is_frozen_are_kept_and_training_goes_on_as_uncut():
    model = random_decoder(tied=True, dropout=0.5)
    model.embedding.requires_grad_(False)
    model.blocks[0].attention.requires_grad_(False)
    model.blocks[1].mlp.up.bias.requires_grad_(False)
    model.blocks[0].dropout_1.eval()
    model.blocks[1].eval()
    tokens = torch.randint(V, (N, T))

    def state(model: Decoder) -> tuple[dict, dict]:
        modes = {name: module.training for name, module in model.named_modules()}
        return modes, {name: p.requires_grad for name, p in model.named_parameters()}

    as_given, at_rest = state(model), copy.deepcopy(model).eval()  # the ranks share both

    def program(group):
        assert state(cut_inside(model, group)) == as_given
        return cut_inside(at_rest, group)(tokens)

    logits = torch.cat(ranks_in_threads(program, 2), dim=-1)
    torch.testing.assert_close(logits, at_rest(tokens), rtol=0, atol=1e-10)


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


class Louder(Attention):
    pass


REFUSED = [
    (lambda m: setattr(m.blocks[1].attention, "__class__", Louder), "plain Attention .* Louder"),
    (
        lambda m: m.embedding.register_forward_pre_hook(lambda *_: None),
        "plain Embedding without hooks can be cut; got Embedding with hooks",
    ),
    (
        lambda m: m.set_submodule("blocks.1.dropout_2", nn.Identity()),
        "plain Dropout without hooks can be cut; got Identity",
    ),
    (
        lambda m: m.blocks.__setitem__(1, m.blocks[0]),
        r"blocks.1.norm_1.weight is used under another name, too; only tied ends can be cut",
    ),
    (
        lambda m: m.head.norm.bias.register_post_accumulate_grad_hook(print),
        r"head.norm.bias has gradient hooks, and its part would not",
    ),
    (lambda m: setattr(m.embedding.positions, "max_norm", 1.0), "max_norm=1.0 cannot be cut"),
]


@pytest.mark.parametrize(("change", "problem"), REFUSED)
def test_a_decoder_that_would_lose_something_is_refused(change, problem: str):
    model = random_decoder()
    change(model)
    with pytest.raises(ValueError, match=problem):
        ranks_in_threads(lambda group: cut_inside(model, group), 2)


def test_what_cannot_be_cut_or_summed_is_refused():
    model = random_decoder()

    def program(group):
        cut = cut_inside(model, group)
        with pytest.raises(ValueError, match="9 tokens in a row; the context holds at most 8"):
            cut(torch.zeros(1, 9, dtype=torch.long))
        with pytest.raises(ValueError, match="these gradients are whole"):
            sum_whole_gradients(cut, group)
        with pytest.raises(ValueError, match="can be cut; got _CutEmbedding"):
            cut_inside(cut, group)

    ranks_in_threads(program, 2)
    with pytest.raises(ValueError, match="3 ranks do not divide 8 heads"):
        ranks_in_threads(lambda group: cut_inside(model, group), 3, timeout_s=5)


IN_PROCESSES = """
import copy
import sys
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from mpcourse.transformer import Decoder, cut_inside
sys.path.append(sys.argv[1])
from cut_decoders import N, T, V, check_cut_step, random_decoder, uncut_loss
distributed.init_process_group("gloo")
model = random_decoder()
batch = torch.randint(V, (2, N, T))
uncut_loss(model, *batch).backward()
for sequence in (False, True):
    check_cut_step(model, *batch, None, sequence)

def step(block, x):
    given = x.clone().requires_grad_()
    output = block(given)
    output.square().mean().backward()
    return output.detach(), given.grad

torch.manual_seed(0)  # the same weights and tokens on both ranks
decoder = Decoder(vocabulary=8, width=64, heads=8, layers=1, context=8)
x = torch.randn(8, 8, 64)
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan |= {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
plan["attention.output"] = RowwiseParallel()
torchs = copy.deepcopy(decoder.blocks[0])
torchs = parallelize_module(torchs, init_device_mesh("cpu", (2,)), plan)
uncut = step(decoder.blocks[0], x)
for block in (cut_inside(decoder).blocks[0], torchs):
    torch.testing.assert_close(step(block, x), uncut, rtol=0, atol=1e-4)
print("equal")
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_in_processes_it_is_the_uncut_decoder_and_torchs_block():
    assert printed_by(IN_PROCESSES, 2, str(Path(__file__).parents[1])) == 2 * ["equal"]
