"""A place for a guess, held against the answer later."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from mpcourse.widgets.panel import Panel


class Prediction(Panel):
    """A place for a guess; `.compare(answer)` shows it beside the answer later.

    In JupyterLab a guess is kept beside the notebook, and is there again in a new kernel.

    Args:
        prompt: What to type, in a few words, for example "rows of each device, such as 1, 2, 4".
        choices: Answers to choose from, each a button; none for a line to type in.
    """

    def __init__(self, prompt: str, choices: Sequence[str] = ()) -> None:
        self.prompt = prompt
        self.choices = tuple(choices)
        # the prompt is the control's own label, which a screen reader reads out with it
        look = {
            "description": prompt,
            "style": {"description_width": "initial"},
            "layout": {"width": "max-content", "max_width": "100%", "min_width": "30em"},
        }
        look["layout"] |= {"flex_flow": "column", "align_items": "stretch", "height": "auto"}
        kept = _kept_guesses().get(prompt)
        if self.choices:
            value = kept if kept in self.choices else None
            self.entry = ipywidgets.RadioButtons(options=self.choices, value=value, **look)
        else:
            value = kept if isinstance(kept, str) else ""
            self.entry = ipywidgets.Text(value=value, placeholder="your guess", **look)
        self.entry.observe(lambda _: _keep_guess(prompt, self.guess), names="value")
        super().__init__([self.entry])

    @property
    def guess(self) -> str:
        """What has been typed or chosen; empty when nothing has."""
        return (self.entry.value or "").strip()

    def __repr__(self) -> str:
        if self.choices:
            choices = " / ".join(self.choices)
            return f"<your guess: {self.prompt}: {choices}; run the cell to choose>"
        return f"<your guess: {self.prompt}; run the cell to type it>"

    def compare(
        self,
        answer: Any,
        *,
        within: float = 0.0,
        values: Sequence[float] | None = None,
        as_good: Sequence[float] = (),
    ) -> "Comparison":
        """Show the guess beside the answer; another guess changes what is shown.

        Without a guess the answer waits, behind a button.

        Args:
            answer: The right answer; its numbers, in order, are held against those of the guess,
                which may have fractions (1/2, half, 1 - 1/2), decimal commas, groups (72,000). One
                of the choices, where there are some.
            within: How far off a guess may be, as a share of each number (0.1: a tenth).
            values: The right numbers where the answer shows them rounded; a guess may be rounded
                too, so `within` is at least 0.01 then.
            as_good: Where one number is asked for: others that cannot be told from the right one.

        Raises:
            ValueError: There are choices, and the answer begins with none of them.
        """
        return Comparison(self, str(answer), within, values, as_good)


class Comparison(Panel):
    """A guess beside the answer, which waits for the guess or for the button "Show the answer".

    As text, in a stored page, it has the answer.
    """

    def __init__(
        self,
        prediction: Prediction,
        answer: str,
        within: float,
        values: Sequence[float] | None,
        as_good: Sequence[float] = (),
    ) -> None:
        self.prediction = prediction
        self.answer = answer
        self.right = _numbers(answer) if values is None else [float(value) for value in values]
        self.within = within if values is None else max(within, 0.01)
        self.as_good = [[float(number)] for number in as_good]
        self.choice = _chosen(answer, prediction.choices)
        self.view = ipywidgets.HTML()
        self.button = ipywidgets.Button(description="Show the answer")
        self.button.on_click(lambda _: self._show(asked=True))
        prediction.entry.observe(lambda _: self._show(), names="value")
        self._show()
        super().__init__([self.view, self.button])

    @property
    def sentence(self) -> str:
        """Guess and answer, as text."""
        guess = self.prediction.guess
        if not guess:
            return f"Your guess: none yet. Answer: {self.answer}."
        verdict = "not what you guessed"
        if self._agrees(guess):
            verdict = "as you said"
        elif any(guessed in self.as_good for guessed in _readings(guess)):
            verdict = "yours cannot be told from it"
        return f"Your guess: {guess}. Answer: {self.answer} ({verdict})."

    def _show(self, *, asked: bool = False) -> None:
        waits = "" if asked else self._waits_for()
        self.view.value = f"<b>{escape(waits or self.sentence)}</b>"
        self.button.layout.display = None if waits else "none"

    def _waits_for(self) -> str:
        """What has to be guessed before the answer is shown; empty when it has been."""
        guess = self.prediction.guess
        if not guess:
            return f"No guess yet ({self.prediction.prompt}): the answer waits for one."
        asked = 0 if self.choice or GLUED.search(self.answer) else len(self.right)
        if asked in (0, *map(len, _readings(guess))):
            return ""
        numbers = "a number is" if asked == 1 else f"{asked} numbers are"
        return f"Your guess: {guess}. But {numbers} asked for."

    def _agrees(self, guess: str) -> bool:
        if self.choice:
            return guess == self.choice
        if not self.right:
            return _words(guess) == _words(self.answer)
        return any(self._near(guessed) for guessed in _readings(guess))

    def _near(self, guessed: list[float]) -> bool:
        share = self.within + 1e-9  # 1.1 is a tenth off 1, whatever floats say
        near = [abs(g - r) <= share * abs(r) for g, r in zip(guessed, self.right, strict=False)]
        return len(guessed) == len(self.right) and all(near)

    def __repr__(self) -> str:
        return self.sentence


def _guesses_file() -> Path | None:
    """Beside the notebook that JupyterLab's server has started this kernel for, else nowhere."""
    notebook = Path(os.getenv("JPY_SESSION_NAME", ""))
    known = notebook.suffix == ".ipynb"
    return notebook.with_name(f".{notebook.stem}.guesses.json") if known else None


def _kept_guesses() -> dict[str, str]:
    try:
        found = json.loads(_guesses_file().read_text(encoding="utf-8"))
    except (AttributeError, OSError, ValueError):  # nowhere, not yet, or no longer legible
        return {}
    return found if isinstance(found, dict) else {}


def _keep_guess(prompt: str, guess: str) -> None:
    path = _guesses_file()
    if path is not None:
        with contextlib.suppress(OSError):  # a folder that cannot be written: the page goes on
            path.write_text(json.dumps(_kept_guesses() | {prompt: guess}), encoding="utf-8")


NUMBER = re.compile(r"(?:(?<!\w)-)?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
FRACTION = re.compile(r"(?<![\d/.])(\d+)\s*/\s*(\d*[1-9]\d*)(?![\d/.])")
MIXED = re.compile(r"(?<![\d/.])(\d+)\s+" + FRACTION.pattern)
LEFT_OVER = re.compile(r"(?<![\w/.])1\s*-\s*" + FRACTION.pattern)
DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")
THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:[ ,]\d{3})+(?![\d.,])")
NAMED = {"half": "1/2", "third": "1/3", "quarter": "1/4"}
GLUED = re.compile(r"[^\W\d]\d")  # a number that belongs to a name, as in float32
NO_MEANING = ("a", "an", "the", "at", "in", "on", "torch")  # torch.compile is compile


def _numbers(words: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(words)]  # 3-3-1 has dashes, no minus


def _readings(guess: str) -> Iterator[list[float]]:
    """The numbers that a guess may mean: 1/2 and 0,5 are two, or a half; 72,000 two, or one."""
    yield _numbers(guess)
    if "%" in guess:
        yield [number / 100 for number in _numbers(guess)]
    yield _numbers(
        MIXED.sub(lambda found: str(int(found[1]) + int(found[2]) / int(found[3])), guess)
    )
    named = re.sub(rf"\b({'|'.join(NAMED)})\b", lambda word: NAMED[word[0]], guess.casefold())
    yield _numbers(FRACTION.sub(lambda found: str(int(found[1]) / int(found[2])), named))
    yield _numbers(LEFT_OVER.sub(lambda part: str(1 - int(part[1]) / int(part[2])), guess))
    yield _numbers(DECIMAL_COMMA.sub(".", guess))
    yield _numbers(THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), guess))


def _chosen(answer: str, choices: Sequence[str]) -> str | None:
    """The choice that the answer begins with ("two, measured here" begins with "two")."""
    fitting = [choice for choice in choices if answer.startswith(choice)]
    if choices and not fitting:
        raise ValueError(f"the answer {answer!r} begins with none of the choices {list(choices)}")
    return max(fitting, key=len, default=None)


def _words(words: str) -> list[str]:
    return [word for word in re.findall(r"\w+", words.casefold()) if word not in NO_MEANING]


predict = Prediction  # as pages call it
