"""The formulas of the pages as MathML, which browsers draw by themselves.

Page: all of them. Covers the part of TeX that the pages use, and refuses what it does not know: a
formula that is wrong is worse than a site that is not built.
"""

import re
from html import escape

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\S")
LETTERS = {"alpha": "α", "beta": "β", "gamma": "γ", "lambda": "λ", "mu": "μ", "sigma": "σ"}
LETTERS |= {"nabla": "∇", "infty": "∞", "log": "log", "exp": "exp", "max": "max", "min": "min"}
SIGNS = {"sum": "∑", "prod": "∏", "dots": "…", "ldots": "…", "cdot": "⋅", "times": "×", "le": "≤"}
SIGNS |= {"ge": "≥", "approx": "≈", "ne": "≠", "to": "→", "in": "∈", "leq": "≤", "geq": "≥"}
SPACES = {",": 0.17, ";": 0.28, " ": 0.25, "quad": 1.0, "!": -0.17}
SCRIPTS = {"_": "msub", "^": "msup", "_^": "msubsup"}


def to_mathml(tex: str, *, block: bool = False) -> str:
    r"""Turn a formula into MathML."""
    tokens = TOKEN.findall(tex)[::-1]
    try:
        body = "".join(_items(tokens, end=""))
    except (KeyError, IndexError) as error:
        raise ValueError(f"the formula {tex!r}: cannot read {error.args[0]!r}") from None
    display = ' display="block"' if block else ""
    return f"<math{display}><mrow>{body}</mrow></math>"


def _items(tokens: list[str], *, end: str) -> list[str]:
    """Read up to `end`: what stands there, each with its scripts."""
    items = []
    while tokens and tokens[-1] != end:
        base, scripts = _atom(tokens), {}
        while tokens and tokens[-1] in ("_", "^"):
            sign = tokens.pop()
            scripts[sign] = _atom(tokens)
        if scripts:
            kind = SCRIPTS["".join(sorted(scripts, reverse=True))]
            if base == "<mo>∑</mo>":  # limits stand below and above where there is room
                kind = {"msub": "munder", "msup": "mover"}.get(kind, "munderover")
            parts = "".join(scripts[sign] for sign in sorted(scripts, reverse=True))
            base = f"<{kind}>{base}{parts}</{kind}>"
        items.append(base)
    if end:
        tokens.pop()
    return items


def _atom(tokens: list[str]) -> str:
    token = tokens.pop()
    if token == "{":
        return f"<mrow>{''.join(_items(tokens, end='}'))}</mrow>"
    if token[0] == "\\":
        return _command(token[1:], tokens)
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token.isalpha():
        return f"<mi>{token}</mi>"
    if token == "}":
        raise KeyError(token)
    fixed = ' stretchy="false"' if token in "()[]|" else ""
    return f"<mo{fixed}>{'−' if token == '-' else escape(token)}</mo>"


def _command(name: str, tokens: list[str]) -> str:
    if name in ("left", "right"):
        return f"<mo>{escape(tokens.pop())}</mo>"
    if name in ("mathrm", "text", "operatorname"):
        return f"<mi>{''.join(re.findall('<m.>(.)', _atom(tokens)))}</mi>"
    if name == "frac":
        return f"<mfrac>{_atom(tokens)}{_atom(tokens)}</mfrac>"
    if name == "sqrt":
        return f"<msqrt>{_atom(tokens)}</msqrt>"
    if name in SPACES:
        return f'<mspace width="{SPACES[name]}em"/>'
    if name in LETTERS:
        return f"<mi>{LETTERS[name]}</mi>"
    return f"<mo>{SIGNS[name]}</mo>"
