"""An attempt at running a mini-batch in pieces, through one module or two (page `pipeline`).

The modules are small and in double precision; hooks note what goes into them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.verdict import same, short, try_out

Loss = Callable[[Tensor, Tensor], Tensor]
NOT_CUT = "The graph is not cut: what back gets still hangs on front's graph. detach() it."
LAST_OF_ONE = "Only the last piece is left: do not clear the gradients between pieces."
LAST_OF_TWO = "Only the last piece is there: keep one output per piece."
HAND_OVER = "back's gradients are right. Does each output.backward(...) get its own leaf.grad?"
COUNTS_BY = "A piece of n rows out of N counts by n / N, its loss and so its gradient."
NO_LEAF = "What back gets asks for no gradient, so none arrives there: requires_grad_() it."


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that is no squared error."""
    return (outputs - targets).abs().mean()


@dataclass
class PiecesTrial:
    """One mini-batch, the modules that it goes through, and what should come out.

    Attributes:
        parts: The name of each module, and the module; each has one weight.
        loss_fn: A mean over the rows.
        rows: Of the mini-batch.
        size: Of a piece; the last may be smaller.
    """

    parts: dict[str, nn.Module]
    loss_fn: Loss
    rows: int
    size: int
    seen: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = nn.Sequential(*self.parts.values()).double()
        self.weights = list(self.whole.parameters())
        generator = torch.Generator().manual_seed(self.rows)
        for weight in self.weights:
            numbers = torch.randn(weight.shape, generator=generator, dtype=torch.double)
            weight.data.copy_(numbers)
        self.before = [weight.detach().clone() for weight in self.weights]
        self.inputs = torch.randn(self.rows, 3, generator=generator, dtype=torch.double)
        growing = torch.arange(1.0, self.rows + 1)[:, None]
        self.targets = self.inputs.sum(1, keepdim=True) * growing
        for name, part in self.parts.items():
            part.register_forward_pre_hook(
                lambda _, given, name=name: self.seen.setdefault(name, []).append(given[0])
            )

    def gradients_of(self, inputs: Tensor, targets: Tensor) -> tuple[float, list[Tensor]]:
        """The loss of some rows, and its gradients, one per module."""
        loss = self.loss_fn(self.whole(inputs), targets)
        return loss.item(), list(torch.autograd.grad(loss, self.weights))

    def run(self, attempt: Callable) -> list[str] | None:
        """What is wrong with the attempt, in words; nothing if all is right; None for the stub."""
        right, gradients = self.gradients_of(self.inputs, self.targets)
        pieces = zip(self.inputs.split(self.size), self.targets.split(self.size), strict=True)
        each = [self.gradients_of(*piece)[1] for piece in pieces]
        self.seen.clear()
        given = (*self.parts.values(), self.loss_fn, self.inputs, self.targets, self.size)
        result, problem = try_out(attempt, *given)
        if problem:
            hint = (
                "A backward begins at a number, or is handed a gradient: out.backward(leaf.grad)."
            )
            if self._not_cut() == [NO_LEAF]:
                hint = NO_LEAF  # leaf.grad was handed on, but is None
            return [problem, hint if "implicitly created" in problem else ""]
        if result is ...:
            return None
        return (self._changed() or self._wrong_sizes() or self._not_cut()) or self._wrong_results(
            result, right, gradients, each
        )

    def _changed(self) -> list[str]:
        for weight, before in zip(self.weights, self.before, strict=True):
            if weight.dtype != before.dtype:
                return [f"the weights are {weight.dtype} now: leave the model as precise as it is."]
            if not torch.equal(weight.detach(), before):
                return ["the weights have changed: an optimizer's step is not part of this."]
        return []

    def _wrong_sizes(self) -> list[str]:
        wanted = [len(piece) for piece in self.inputs.split(self.size)]
        for name in self.parts:
            sizes = [len(value) for value in self.seen.get(name, [])]
            if sizes != wanted:
                line = f"expected pieces of {wanted} rows, the {name} saw {sizes}"
                if sum(sizes) < self.rows:
                    return [line, "The last piece may be smaller, but its rows count."]
                again = len(sizes) > len(wanted)
                return [line, "Each piece goes through once." if again else ""]
        return []

    def _not_cut(self) -> list[str]:
        for value in self.seen.get("back", ()):
            if not value.is_leaf:
                return [NOT_CUT]
            if not value.requires_grad:
                return [NO_LEAF]
        return []

    def _wrong_results(
        self, result: Any, right: float, gradients: list[Tensor], each: list[list[Tensor]]
    ) -> list[str]:
        pairs = zip(self.parts, self.weights, gradients, zip(*each, strict=True), strict=True)
        for name, weight, gradient, of_pieces in pairs:
            if weight.grad is None and name == "front":
                return [
                    "front got no gradient: hand its output the one that arrived at the leaf, "
                    "output.backward(leaf.grad)."
                ]
            if weight.grad is None:
                return [f"no gradient arrived in {name}: call backward() on every piece's loss."]
            if not torch.allclose(weight.grad, gradient, rtol=1e-9, atol=1e-12):
                line = f"in {name}, expected the gradient {short(gradient)}"
                why = self._why_wrong(weight.grad, list(of_pieces))
                if (
                    why == COUNTS_BY
                    and name == "front"
                    and same(self.weights[1].grad, gradients[1])
                ):
                    why = HAND_OVER
                return [line, f"got {short(weight.grad)}", why]
        if not same(result, right):
            got = f"got {short(result)}"
            return [f"the gradients are right; expected the loss {short(right)}", got]
        return []

    def _why_wrong(self, got: Tensor, each: list[Tensor]) -> str:
        shares = [len(piece) / self.rows for piece in self.inputs.split(self.size)]
        if same(got, sum(s * g for s, g in zip(shares, each, strict=True))):
            return "Right to seven digits only: somewhere the numbers pass through float32."
        known = (
            (
                sum(each),
                "Each loss is a mean: added up they count too much. Scale before backward().",
            ),
            (sum(each) / len(each), "Mean of means: a short piece counts as much as a full one."),
            (each[-1], LAST_OF_ONE),
            (each[-1] * shares[-1], LAST_OF_TWO if "back" in self.parts else LAST_OF_ONE),
            (each[0], "Only the first piece is there: call backward() for every piece."),
            (
                each[0] * shares[0],
                "Only the first piece is there: call backward() for every piece.",
            ),
        )
        for gradient, message in known:
            if same(got, gradient):
                return message
        if not isinstance(self.loss_fn, nn.MSELoss):
            return "Here loss_fn is no squared error: call the loss_fn that is handed in."
        return COUNTS_BY


def pieces_problem(attempt: Callable, make_parts: Callable[[], dict]) -> Sequence[str] | None:
    """The first trial that fails, in words; nothing if all is right; None for the stub."""
    trials = (
        (4, 2, nn.MSELoss()),
        (5, 2, nn.MSELoss()),
        (7, 3, absolute_error),
        (3, 8, nn.MSELoss()),
    )
    for rows, size, loss_fn in trials:
        lines = PiecesTrial(make_parts(), loss_fn, rows, size).run(attempt)
        if lines is None:
            return None
        if lines:
            return [f"Given {rows} rows and split_size {size}:", *lines]
    return []
