"""Solutions of page `parallel_apply`: parallel_apply, the four verbs, a crossing, memory."""

import torch

from mpcourse.data_parallel import gather, parallel_apply, replicate, scatter


def my_parallel_apply(modules, inputs, devices):
    """First hand everything over, then ask for the results, in the order of the modules.

    `submit` and `result` in one loop would run one after the other. Collecting results as they
    come would mix up the order. The grad mode belongs to a thread, so the caller asks for its own
    and each worker sets it. `result()` raises what the module raised: there is nothing to catch.
    """
    gradients = torch.is_grad_enabled()

    def call(module, value):
        with torch.set_grad_enabled(gradients):
            return module(value)

    pairs = zip(devices, modules, inputs, strict=True)
    results = [device.submit(call, module, value) for device, module, value in pairs]
    return [result.result() for result in results]


def my_data_parallel(module, batch, devices):
    """Scatter first: how many chunks come out says how many devices are used.

    With five rows and four devices there are three chunks, and the verbs refuse lists of unequal
    lengths. `replicate` keeps the way back to the module's own weights; copies made with
    `copy.deepcopy` would have weights, and gradients, of their own.
    """
    chunks = scatter(batch, devices)
    used = devices[: len(chunks)]
    outputs = parallel_apply(replicate(module, used), chunks, devices=used)
    return gather(outputs, devices[0])


def my_crossing(sizes, one_device, two_devices):
    """Go from the largest size down, for as long as two devices are faster.

    The first size at which they are faster may be a lucky moment of the clock: what pays has to pay
    at every larger size too. If they lose at the largest, there is no such size.
    """
    found = None
    for size, one, two in reversed(list(zip(sizes, one_device, two_devices, strict=True))):
        if two >= one:
            break
        found = size
    return found


def my_first_device(weights, row_in, row_out, rows, devices):
    """All the weights, the first chunk of the inputs, the outputs of all rows.

    Weights are copied, not shared out, and outputs are gathered: adding devices shrinks only the
    inputs. The first chunk is the largest, so its rows are rounded up.
    """
    chunk = -(-rows // devices)
    return weights + chunk * row_in + rows * row_out
