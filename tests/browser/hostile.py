"""Makes hostile texts: of parts that break out of texts, attributes, scripts, templates, queries and lines."""
# ruff: noqa: RUF001 - some characters look like others, which is the point

from __future__ import annotations

import random

RUN = "globalThis.hacked=1"
"""What a script would do that ran."""

QUOTES = ("", "'", '"', "`", "'\"", "\\'", "&quot;", "&#39;", "%22", "\\u0022")
ENDS = (
    "",
    ">",
    "/>",
    "-->",
    "]]>",
    "</p>",
    "</td></tr></table>",
    "</title>",
    "</script>",
    "</textarea></form>",
    "\n\n",
)
OPENINGS = ("<", "<", "<", "</", "< ", "<!--", "<!", "<?")
CLOSINGS = (">", ">", "", "//>")
TAGS = (
    *("script", "img", "svg", "iframe", "a", "form", "input", "button", "math", "style", "link", "base", "meta", "use"),
    *("object", "template", "details", "video", "x-y", "h1", "time", "foreignObject", "animate", "embed"),
)
HANDLERS = ("onload", "onerror", "onfocus", "onclick", "ontoggle", "onmouseover", "onbegin", "onanimationend")
LINKS = ("href", "src", "action", "formaction", "xlink:href", "srcdoc", "poster", "data", "content", "style", "id")
ADDRESSES = (
    f"javascript:{RUN}",
    f"JaVa\tScRiPt:{RUN}",
    f"\x01javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"data:image/svg+xml,<svg onload={RUN}>",
    "//attacker.example/x",
    "http://attacker.example",
    "\\\\attacker.example",
    "0;url=//attacker.example",
    "//user:pw@attacker.example:99999/",
    "../../do/drop?all=1",
)
HTMX = (
    f"hx-on:load={RUN}",
    f"hx-on::after-request={RUN}",
    "hx-get=/ hx-trigger=load",
    "data-hx-post=/ data-hx-trigger=load",
    "hx-boost=false",
    "hx-swap-oob=true id=content",
    "hx-vals=js:{a:globalThis.hacked=1}",
    "data-stream=//attacker.example",
    "data-copy=x",
    "hx-confirm=x autofocus open",
)
TEXTS = (
    *("{{ 7*7 }}", "{% raw %}", "{% endblock %}", "{# #}", "${7*7}", "#{7*7}", "<%= 7*7 %>", "{{''.__class__}}", "{0}"),
    *("&lt;script&gt;", "&#x3c;b&#x3e;", "&amp;lt;", "&Tab;", "&colon;", "&#0;", "&nbsp", "\\u003cb\\u003e", "%3Cb%3E"),
    *("%", "_", "%' or 1=1 --", "'; drop table x; --", "\\", "..", "#", "?", "&sink=x", "+", " ", "null", "-1", "1e9"),
    *("`x`", "2026-01-01 00:00:00Z", "event: fragment\ndata: <h1>x</h1>", "x" * 500, "\u0335\u0489" * 20, "İıſK", "ﬀ"),
    *("\U0001f469\u200d\U0001f680", "\ud7ff\uffff", "\u05d0\u05d1 abc \u0627"),
)
UNSEEN = (
    "\u202e\u2066\u2069\u200e\u200f\u061c\u200b\u200c\u200d\u2060\ufeff\u00ad\u2028\u2029\x85\x01\x07\x08\x0b\x0c\x1b\x7f\x9b"
    "\U000e0041\r\n\t"
)


class Hostile:
    """The same texts for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._parts = (self._element, self._element, self._attributes, self._unseen, self._text)

    def __call__(self, longest: int) -> str:
        """A text of at most so many bytes, and at least one."""
        made = "".join(self._random.choice(self._parts)() for _ in range(self._random.randint(1, 4)))
        return made.encode()[:longest].decode(errors="ignore") or "%"

    def _element(self) -> str:
        pick = self._random.choice
        tag = "".join(pick((each.upper(), each)) for each in pick(TAGS))
        inside = self._attributes() if self._random.random() < 0.7 else ""
        begin = pick(QUOTES) + pick(ENDS) + pick(OPENINGS) + tag + pick(" /\t\n") + inside + pick(CLOSINGS)
        return begin + RUN + pick(ENDS)

    def _attributes(self) -> str:
        pick = self._random.choice
        given = (f"{pick(HANDLERS)}={self._quoted(RUN)}", f"{pick(LINKS)}={self._quoted(pick(ADDRESSES))}", pick(HTMX))
        return f"{pick(QUOTES)} {' '.join(self._random.sample(given, self._random.randint(1, 3)))} {pick(QUOTES)}"

    def _quoted(self, text: str) -> str:
        quote = self._random.choice(QUOTES)
        return f"{quote}{text}{quote}"

    def _unseen(self) -> str:
        return "".join(self._random.choice(UNSEEN) + self._random.choice("ab<") for _ in range(3))

    def _text(self) -> str:
        return self._random.choice((*TEXTS, *ADDRESSES, *HTMX))
