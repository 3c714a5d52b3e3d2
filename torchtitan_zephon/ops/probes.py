"""Strings made to tell two tokenizers apart.

What flows in: the added tokens of a tokenizer. What flows out: some thousand texts: every contraction in every case,
runs of white space and digits, borders between scripts, marks and emoji, every code point that a table of Unicode newer
or older than another may class differently, added tokens in context, and random mixtures of all these. The same
on every machine.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator

from ..plan import keyed

_SPACES = (
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003"),
    *(
        "\u200b",
        "\u2028",
        "\u2029",
        "\u202f",
        "\u205f",
        "\u3000",
        "\ufeff",
        " \n",
        "\n ",
        " \n\n ",
        "\t\t ",
        "   \n    ",
    ),
)
_CONTRACTIONS = ("'s 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'M 'lL 'D \u2019s ''s").split(" ")
_WORDS = (
    "the of Hello WORLD camelCase snake_case x1 3D don't I'LL naïve Straße ﬁne İstanbul ΣΊΣΥΦΟΣ привет мир שלום "
    "العربية हिन्दी ไทย 中文 日本語 カタカナ ひらがな 한국어 ᏣᎳᎩ 🚀 👩\u200d👩\u200d👧\u200d👦 🇩🇪 e\u0301 a\u0323\u0307 "
    "½ ² Ⅷ ٣ 1234567 12,345.678 0x1F #!$%^&*() -- ... “q” — « » ++i; {}[] </s> <b> http://a.b/c?d=e&f "
    "\\n \\u0041 \x00 \x07 \x7f \u00ad \u0130 \u0131 \u212a \ufb01 \u1e9e \ufffd \ufffe \U000e0041 \U0001d400 "
    "\U0010ffff"
).split(" ")
_UNITS = ["a", "A", "1", "\u0663", " ", "\n", "\t", "\xa0", ".", "'", "é", "漢", "\u0301", "🚀", "ab", "a ", "\x00"]
_AROUND = ("{0}", "a{0}b", " {0} {0}", "1{0}2", "\n{0}\n", ".{0}'s", "é{0}漢{0}")


def probes(added_tokens: list[str]) -> list[str]:
    """The texts, about 7,000 of them and more with many added tokens."""
    return [*_pairs(), *_runs(), *_code_points(), *_added(added_tokens), *_mixtures(added_tokens)]


def _pairs() -> Iterator[str]:
    for word, contraction in itertools.product(_WORDS, _CONTRACTIONS):
        yield f"{word}{contraction}{word}"
    for a, b, space in itertools.product(_WORDS[::3], _WORDS[1::3], ("", " ")):
        yield a + space + b
    for word, space in itertools.product(_WORDS, _SPACES):
        yield f"{space}{word}{space}"


def _runs() -> Iterator[str]:
    for unit in [
        "a",
        "A",
        "1",
        "\u0663",
        " ",
        "\n",
        "\t",
        "\xa0",
        ".",
        "'",
        "é",
        "漢",
        "\u0301",
        "🚀",
        "ab",
        "a ",
        "\x00",
    ]:
        for n in (2, 3, 4, 5, 7, 8, 9, 16, 17, 64, 255, 1000):
            yield unit * n
            yield f"x{unit * n}y 1"
    yield ""
    yield "word " * 20_000


def _code_points() -> Iterator[str]:
    """Every code point to U+33FFF, and of planes 14 and 16 some, that not all tables of Unicode class alike.

    Those unassigned in this interpreter or in Unicode 3.2, one in 32 inside the large blocks of ideographs, and
    one in 8 of the rest.
    """
    old = unicodedata.ucd_3_2_0
    picked: list[str] = []
    for n in itertools.chain(range(0x34000), range(0xE0000, 0xE0200), range(0x10FF00, 0x110000)):
        c = chr(n)
        if 0xD800 <= n < 0xE000:
            continue
        newer = old.category(c) == "Cn"
        one_in = 32 if _in_large_block(n) else 1 if newer or n < 0x3000 else 8
        if n % one_in == 0:
            picked.append(c)
    for i in range(0, len(picked), 16):
        some = picked[i : i + 16]
        yield "".join(f"a{c} {c}1{c}{c}" for c in some)


def _in_large_block(n: int) -> bool:
    """Ideographs, Hangul syllables, private use: many code points of one class each."""
    low = 0x3400 <= n < 0xA000 or 0xAC00 <= n < 0xD7A0 or 0xE000 <= n < 0xF900
    return low or 0x17000 <= n < 0x1A000 or n >= 0x20000


def _added(tokens: list[str]) -> Iterator[str]:
    for token in tokens:
        yield from (form.format(token) for form in _AROUND)
        yield token[:-1] + " " + token[1:]


def _mixtures(added_tokens: list[str]) -> Iterator[str]:
    pieces = [*_WORDS, *_SPACES, *_CONTRACTIONS, *added_tokens[:16], *"abcXYZ019.,;'\"-_"]
    key = keyed.key("probes")
    for text in range(1500):
        counter = text << 8
        length = 1 + keyed.below(key, counter, 40)
        yield "".join(pieces[keyed.below(key, counter + 1 + k, len(pieces))] for k in range(length))
