"""Solutions: evaluation over ragged batches, batch norm's drift, and its end."""

import torch


def my_evaluate(model, batches, loss_fn):
    """Add up what belongs to samples, and divide once, at the end.

    A batch's loss is a mean, so it counts by its number of samples. The targets go where the
    outputs are, which only the outputs know. Each module's mode is remembered before it changes:
    `model.train(True)` at the end would wake what was frozen.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total, right, samples = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in batches:
            outputs = model(inputs)
            targets = targets.to(outputs.device)
            total += loss_fn(outputs, targets).item() * len(targets)
            right += (outputs.argmax(dim=1) == targets).sum().item()
            samples += len(targets)
    for module, mode in modes:
        module.training = mode
    return total / samples, right / samples


def my_drift(momentum, num_microbatches):
    """Each move leaves a share of 1 - momentum of the way, whoever moves.

    The unsplit layer moves once and the cut one once per micro-batch. The distance between them is
    the difference of what is left. It grows with the micro-batches, up to 1 - momentum.
    """
    return (1 - momentum) - (1 - momentum) ** num_microbatches


def my_merged(counts, means, variances):
    """Add up the squared distances from the common mean, from two sources.

    Within a micro-batch they are variance times (count - 1), since the variance is unbiased. All of
    its values are also shifted from the common mean by the distance of its own mean. The sum is
    divided by the number of all values less one.
    """
    rows = list(zip(counts, means, variances, strict=True))
    total = sum(counts)
    mean = sum(n * m for n, m, _ in rows) / total
    squares = sum((n - 1) * v + n * (m - mean) ** 2 for n, m, v in rows)
    return mean, squares / (total - 1)
