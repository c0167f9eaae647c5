"""Solutions of page `pipeline`: a ceiling, a mini-batch in pieces, a cut graph, the best split."""


def my_ceiling(stage_times, num_microbatches):
    """The first micro-batch needs the sum of all stages, each further one the slowest stage.

    The slowest stage is the one that never waits in between: behind it the others wait for its
    next output, before it they wait for its next gradient. With p equal stages this is
    p * m / (m + p - 1); m / p would grow for ever.
    """
    one_device = num_microbatches * sum(stage_times)
    return one_device / (sum(stage_times) + (num_microbatches - 1) * max(stage_times))


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


def my_cut_step(front, back, loss_fn, inputs, targets, split_size):
    """The leaf ends the back's graph and catches the gradient; the front's goes on from it.

    Without requires_grad_() nothing arrives at the leaf, without detach() one backward runs
    through both stages, and without the last line the front never learns.
    """
    total = 0.0
    pieces = zip(inputs.split(split_size), targets.split(split_size), strict=True)
    for piece, answer in pieces:
        output = front(piece)
        leaf = output.detach().requires_grad_()
        loss = loss_fn(back(leaf), answer) * len(piece) / len(inputs)
        loss.backward()
        output.backward(leaf.grad)
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
