"""Texts that tokenizers have disagreed about: each must come out id for id as the original has it."""

from __future__ import annotations

from typing import Literal

GOLDEN = (
    "",
    " ",
    "a cat",
    "A Cat.",
    "  two  spaces   everywhere ",
    "tab\tand\nnewline\r\nin it",
    "non\u00a0breaking\u2003and\u3000wide spaces",
    "café, naïve, Zürich, ÅNGSTRÖM",
    "cafe\u0301 in two code points",
    "İstanbul, straße, ΟΔΟΣ, Σ, ΑΣ.",
    "“curly” quotes, ‘single’ ones, it’s — and… dots",
    "it's they're we've I'm you'll he'd don't IT'S",
    "ﬁne ligatures, ｆｕｌｌ ｗｉｄｔｈ",
    "mojibake: cafÃ© â€œquotedâ€\u009d",
    "&lt;b&gt;bold&lt;/b&gt; &amp;amp; &quot;twice&quot; &nbsp; AT&T R&D;",
    "a 🐈 and a 👩‍👩‍👧‍👦 on a 🏳️‍🌈 ❤️",
    "日本の猫 と 犬",
    "кошка и собака",
    "قطة وكلب",
    "एक बिल्ली",
    "mixed кот cat 猫 γάτα",
    "2 dogs, 10 cats and 1,234.5 birds in 1999",
    "e-mail: someone@example.com / http://example.com/?a=b&c=d",
    "snake_case_word and __double__",
    "!?...;;;---***(((###",
    "C:\\temp\\file [brackets] {braces} <angle> |pipe| ~tilde^",
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 8,
    "a dog and a cat " * 60,
    "antidisestablishmentarianism " * 30,
    "soft\u00adhyphen zero\u200bwidth\u200djoiner \ufeffbom",
    "½ ² ₃ Ⅳ № ™",
)

ALIKE: dict[Literal["case", "punctuation", "spaces"], tuple[tuple[str, str], ...]] = {
    "case": (("A Dog", "a dog"), ("a photo of A DOG, In The Scene.", "a photo of a dog, in the scene.")),
    "punctuation": (("a dog.", "a dog"), ("a dog, (a cat) and 'a bus'!", "a dog a cat and a bus")),
    "spaces": ((" a dog ", "a dog"), ("a  dog\t\nand   a cat", "a dog and a cat")),
}
"""Pairs of texts that differ in one respect alone: whether they have the same ids says what a tokenizer ignores."""
