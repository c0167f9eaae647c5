"""Solutions of page `pipeline`: the ceiling, a mini-batch in pieces, the split for given costs."""


def my_ceiling(num_stages, num_microbatches):
    """One device needs p * m slots; the pipeline's last stage ends after m + p - 1.

    The last stage works m slots, and before its first one p - 1 others pass while the pipeline
    fills; the drain is the same wait on the other side. So p devices never reach p, and more
    micro-batches come nearer to it. m / p would grow for ever.
    """
    return num_stages * num_microbatches / (num_microbatches + num_stages - 1)


def my_step(model, loss_fn, inputs, targets, split_size):
    """Scale each piece's mean loss by its share of the rows, then let the gradients add up.

    Dividing by the number of pieces gives a short last piece too much weight; not scaling makes
    gradients grow with the number of pieces. Scaling before backward scales the gradient as well.
    """
    total = 0.0
    pieces = zip(inputs.split(split_size), targets.split(split_size), strict=True)
    for piece, answer in pieces:
        loss = loss_fn(model(piece), answer) * len(piece) / len(inputs)
        loss.backward()
        total += loss.item()
    return total


def my_split_size(sizes, num_samples, fixed, per_sample):
    """m micro-batches take m + 1 slots, each as long as one micro-batch in one stage.

    Small sizes pay the fixed cost often, large ones leave a long bubble. Between the two ends the
    best size lies near the square root of num_samples * fixed / per_sample: without a fixed cost
    the smallest wins, with a huge one the largest.
    """

    def step(size):
        return (num_samples / size + 1) * (fixed + per_sample * size)

    return min(sizes, key=step)
