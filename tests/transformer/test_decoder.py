"""The decoder gives torch's own numbers, sees nothing ahead, and refuses sizes that do not fit."""

import pytest
import torch
from torch import nn

from mpcourse.transformer import Block, Decoder

WIDTH, HEADS = 24, 3


def randomise(module: nn.Module) -> None:
    """Norms and biases too: what starts at 0 or 1 hides a slip."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def torch_layer(block: Block) -> nn.TransformerEncoderLayer:
    """Torch's own layer with the block's weights."""
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
    ).double()
    attention = block.attention
    projections = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    pairs = [
        (layer.self_attn.out_proj, attention.output),
        *((layer.linear1, block.mlp.up), (layer.linear2, block.mlp.down)),
        *((layer.norm1, block.norm_1), (layer.norm2, block.norm_2)),
    ]
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    return layer


def test_a_block_is_torchs_encoder_layer_with_a_causal_mask():
    block = Block(WIDTH, HEADS).double()
    randomise(block)
    layer = torch_layer(block)
    ours = torch.randn(2, 7, WIDTH).double().requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    outputs = (block(ours), layer(theirs, src_mask=mask, is_causal=True))
    assert (outputs[0] - outputs[1]).abs().max() < 1e-12
    for output in outputs:
        output.pow(2).sum().backward()
    assert (ours.grad - theirs.grad).abs().max() < 1e-12 * ours.grad.abs().max()
    mlp = (block.mlp.up.weight.grad, layer.linear1.weight.grad)
    assert (mlp[0] - mlp[1]).abs().max() < 1e-12 * mlp[0].abs().max()


def test_no_token_sees_what_comes_after_it():
    model = Decoder(11, WIDTH, HEADS, layers=2, context=8).double()
    randomise(model)
    tokens = torch.randint(11, (3, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert (difference[:5] == 0).all()
    assert (difference[5:] > 0).all()


@pytest.mark.parametrize("tied", [False, True])
def test_the_modules_in_a_row_and_their_parameters(tied: bool):
    model = Decoder(11, WIDTH, HEADS, layers=3, context=8, tied=tied)
    tokens = torch.randint(11, (2, 6))
    row = model.as_sequential()
    assert model(tokens).shape == (2, 6, 11)
    assert [type(module).__name__ for module in row] == ["Embedding", *3 * ["Block"], "Head"]
    assert torch.equal(row(tokens), model(tokens))
    assert set(row.parameters()) == set(model.parameters())
    block = 12 * WIDTH**2 + 13 * WIDTH
    wanted = (1 if tied else 2) * 11 * WIDTH + 8 * WIDTH + 3 * block + 2 * WIDTH
    assert sum(p.numel() for p in model.parameters()) == wanted
    assert (model.head.output.weight is model.embedding.tokens.weight) == tied


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"heads": 5}, "5 heads do not divide a width of 24: each head"),
        ({"vocabulary": 0}, "vocabulary is 0; it has to be at least 1"),
        ({"layers": -1}, "layers is -1; it has to be at least 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], problem: str):
    right = {"vocabulary": 11, "width": WIDTH, "heads": HEADS, "layers": 1, "context": 8}
    with pytest.raises(ValueError, match=problem):
        Decoder(**right | sizes)
    for heads in (0, 5):
        with pytest.raises(ValueError, match=f"{heads} heads do not divide a width of 24"):
            Block(WIDTH, heads)
    with pytest.raises(ValueError, match="9 tokens in a row; the context holds at most 8"):
        Decoder(**right)(torch.zeros(1, 9, dtype=torch.long))
