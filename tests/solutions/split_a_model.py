"""Solutions: a step over two devices, a balanced split, one model's parts, a placement."""

from torch import nn
from torch.nn.functional import cross_entropy


def my_training_step(front, back, inputs, labels, first, second):
    """Each thing goes to where it is needed next.

    The outputs come out on the second place, so the labels go there as well. The backward needs no
    `.to`: that of `hidden.to(second)` brings the gradient back. Moving the outputs to the first
    place would work too, but costs two more copies.
    """
    hidden = front.to(first)(inputs.to(first))
    outputs = back.to(second)(hidden.to(second))
    loss = cross_entropy(outputs, labels.to(second))
    loss.backward()
    return loss


def my_split(model, num_stages):
    """Try every end of the first stage; what is left is the same question with one stage fewer.

    Each stage gets at least one layer, and enough are left for the stages to come, so none is empty
    and no layer is lost. Filling one stage after the other cannot work: whether a layer still
    belongs in this stage depends on the layers to come. For hundreds of layers,
    `balanced_bounds` finds the same faster.
    """
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in model]

    def best(start, stages):  # the largest stage, and where the stages end, from `start` on
        if stages == 1:
            return sum(sizes[start:]), [len(sizes)]
        found = []
        for end in range(start + 1, len(sizes) - stages + 2):
            largest, ends = best(end, stages - 1)
            found.append((max(sum(sizes[start:end]), largest), [end, *ends]))
        return min(found)

    _, ends = best(0, num_stages)
    return [model[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def my_parts(model):
    """Write down all that `forward` does, in order, with the layers of this one model.

    Flattening and the two ReLUs have no parameters and are no attributes of the model, so they are
    lost when only its layers are collected. Nothing follows fc3. The parts share the model's
    parameters, so training them trains the model.
    """
    first = nn.Sequential(nn.Flatten(), model.fc1, nn.ReLU())
    return [first, nn.Sequential(model.fc2, nn.ReLU(), model.fc3)]


def my_places(net, inputs, limit):
    """Run the net layer by layer: each output that is small enough is a possible cut.

    Of these, take the one whose fuller GPU holds the fewest bytes of parameters. The last output
    is no cut: behind it there is no layer for the other GPU.
    """
    held = [sum(p.nbytes for p in layer.parameters()) for layer in net]
    fuller = {}
    for cut in range(1, len(net)):
        inputs = net[cut - 1](inputs)
        if inputs.nbytes <= limit:
            fuller[cut] = max(sum(held[:cut]), sum(held[cut:]))
    cut = min(fuller, key=fuller.get)
    return [0] * cut + [1] * (len(net) - cut)
