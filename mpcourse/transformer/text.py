"""The text that the small transformer learns, and the losses of n-gram counts on it.

Page `a_transformer`. A token is one character; a loss is the mean of -log(probability of the next
character), in nats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mpcourse.devices.recordings import DATA_FOLDER

PROSE = DATA_FOLDER / "prose.txt"
TEST_SHARE = 0.1
DISCOUNT = 0.9  # taken from each count; it and the longest run: best on the last tenth of `train`
N_GRAMS = ("unigram", "bigram", "trigram", "4-gram", "5-gram", "6-gram", "7-gram")


@dataclass(frozen=True)
class Text:
    """A text as tokens."""

    characters: str  # all different ones; a token is a position in this string
    train: Tensor  # tokens of the first nine tenths, int64, (number of characters,)
    test: Tensor  # the rest

    def encode(self, words: str) -> Tensor:
        """Characters to tokens, int64, (len(words),); refuses what is not in the text."""
        unknown = sorted(set(words) - set(self.characters))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not among the {len(self.characters)} characters")
        return torch.tensor([self.characters.index(c) for c in words], dtype=torch.long)

    def decode(self, tokens: Tensor) -> str:
        """Tokens of any shape, in order, to characters."""
        return "".join(self.characters[token] for token in tokens.flatten().tolist())


def load_prose() -> Text:
    """The course's own prose; data/README.md says how it was made, and its terms."""
    words = PROSE.read_text(encoding="ascii")
    text = Text("".join(sorted(set(words))), torch.empty(0), torch.empty(0))
    tokens = text.encode(words)
    cut = len(tokens) - int(TEST_SHARE * len(tokens))
    return Text(text.characters, tokens[:cut], tokens[cut:])


def counted_losses(text: Text) -> dict[str, Tensor]:
    """The loss of each test character by counted models: uniform, then runs of 1 to 7 characters.

    What was counted is lowered by a discount; what that leaves goes to the next shorter model, in
    which a run counts once for each different character before it ("interpolated Kneser-Ney").
    Counted in the first part of the text, judged on its second.
    Source: Kneser and Ney, 1995, ICASSP; in this form: Chen and Goodman, 1999, Computer Speech and
    Language 13(4).
    """
    vocabulary = len(text.characters)
    shorter = torch.full((len(text.test),), 1 / vocabulary, dtype=torch.double)
    losses = {"uniform": -shorter.log()}
    for length, name in enumerate(N_GRAMS[: len(text.test)], start=1):
        asked, runs = (_codes(part, length, vocabulary) for part in (text.test, text.train))
        longer = _codes(text.train, length + 1, vocabulary).unique()
        found = []
        for counted in (runs, longer % vocabulary**length):  # as the longest model, as a shorter
            mixed = _discounted(asked, counted, shorter[length - 1 :], vocabulary)
            found.append(torch.cat([shorter[: length - 1], mixed]))  # these have no such past
        losses[name], shorter = -found[0].log(), found[1]
    return losses


def _discounted(asked: Tensor, runs: Tensor, shorter: Tensor, vocabulary: int) -> Tensor:
    """The probability of the last character of each run asked for, given those before it."""
    pasts = asked // vocabulary
    began = _how_often(pasts, runs // vocabulary)  # how often the past was followed
    followers = _how_often(pasts, runs.unique() // vocabulary)  # by how many characters
    left = (_how_often(asked, runs) - DISCOUNT).clamp(min=0)
    mixed = (left + DISCOUNT * followers * shorter) / began.clamp(min=1)
    return torch.where(began > 0, mixed, shorter)


def _codes(tokens: Tensor, length: int, vocabulary: int) -> Tensor:
    """One number for each run of `length` tokens."""
    code = torch.zeros(len(tokens) - length + 1, dtype=torch.long)
    for place in range(length):
        code = code * vocabulary + tokens[place : len(tokens) - length + 1 + place]
    return code


def _how_often(asked: Tensor, codes: Tensor) -> Tensor:
    """How often each code that is asked for is among the codes."""
    codes = codes.sort().values
    return torch.searchsorted(codes, asked, right=True) - torch.searchsorted(codes, asked)
