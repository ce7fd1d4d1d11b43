"""How the site differs from the pages that people read in the repository. The pages stay plain Markdown.

A link that leaves `docs/` leads to the page that shows that file, or becomes the file's path: the site has no address
of the repository to link to. A page that only names a file of the repository shows that file. The diagram of states
becomes a table, because a browser draws it only with a script from the network. A picture in light and dark becomes two
images, of which the theme shows one. At the end `llms.txt` is written.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]+)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
SHOWS = re.compile(r"^This page of the site is \[[^\]]+\]\(([^)]+)\)\.$", re.MULTILINE)
DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(
    r'^<picture>\n.*?srcset="([^"]+)".*?alt="([^"]+)" src="([^"]+)".*?^</picture>$', re.MULTILINE | re.DOTALL
)
ARROW = re.compile(r"^ +(\w+) --> (\w+): (.*)$", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read_page)
    app.connect("build-finished", write_llms)
    return {"parallel_read_safe": True}


def shown_files() -> dict[str, str]:
    """The files of the repository that pages of the site show, by their paths, and the names of these pages."""
    pages = {}
    for page in DOCS.rglob("*.md"):
        if found := SHOWS.search(page.read_text(encoding="utf-8")):
            name = page.relative_to(DOCS).as_posix()
            pages[posixpath.normpath(posixpath.join("docs", posixpath.dirname(name), found[1]))] = name
    return pages


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make the page of the site from the file in the repository."""
    text, place = source[0], f"docs/{docname}.md"
    if found := SHOWS.search(text):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(place), found[1]))
        text = (ROOT / place).read_text(encoding="utf-8")
        app.env.note_dependency(str(ROOT / place))
    text = PICTURE.sub(as_images, DIAGRAM.sub(as_table, text))
    source[0] = relinked(text, place, docname, shown_files())


def relinked(text: str, place: str, docname: str, pages: dict[str, str]) -> str:
    """The text of a file at this place in the repository, with links that are right on the page of that name."""

    def link(found: re.Match[str]) -> str:
        image, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if path == "README.md":
            path = "docs/index.md"
            anchor = ""
        page = pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page is None or (not image and (ROOT / path).is_dir()):
            return words if words.strip("`") == path or "`" in words else f"{words} (`{path}`)"
        return f"{image}[{words}]({posixpath.relpath(page, posixpath.dirname(docname) or '.')}{anchor})"

    parts = FENCED.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def as_table(diagram: re.Match[str]) -> str:
    """The transitions of a state diagram, one in a row."""
    rows = [f"| `{a}` | `{b}` | {words} |" for a, b, words in ARROW.findall(diagram[1])]
    return "\n".join(["| from | to | moved by, when |", "|---|---|---|", *rows])


def as_images(picture: re.Match[str]) -> str:
    """An image for each of Furo's two modes, in a box that scrolls where the screen is narrow."""
    both = ((picture[3], "only-light"), (picture[1], "only-dark"))
    images = "\n".join(f"```{{image}} {file}\n:alt: {picture[2]}\n:class: {mode}\n```\n" for file, mode in both)
    return f":::{{container}} diagram\n{images}:::"


# -- llms.txt --------------------------------------------------------------------------------------------------------


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt beside the pages: what the site has, kind by kind, with links to the plain Markdown."""
    if error is None and app.builder.format == "html":
        Path(app.outdir, "llms.txt").write_text(llms(app.env), encoding="utf-8")


def llms(env: BuildEnvironment) -> str:
    """The list of all pages, in the order of the navigation."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    sentence = first_sentence(index)
    lines = ["# postroad", "", f"> {sentence}"]
    for caption, body in re.findall(r"^:caption: (.+?)\n(.*?)^```$", index, re.MULTILINE | re.DOTALL):
        lines += ["", f"## {caption}", ""]
        entries = [re.sub(r".*<(.+)>", r"\1", line) for line in body.splitlines() if line and not line.startswith(":")]
        for name in [each for entry in entries for each in with_children(env, entry)]:
            text = source_of(name)
            lines.append(f"- [{env.titles[name].astext()}](_sources/{name}.md.txt): {first_sentence(text)}")
    return "\n".join(lines) + "\n"


def with_children(env: BuildEnvironment, entry: str) -> list[str]:
    name = entry.removesuffix(".md")
    return [name, *(each for child in env.toctree_includes.get(name, []) for each in with_children(env, child))]


def source_of(name: str) -> str:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    if found := SHOWS.search(text):
        return (DOCS / posixpath.dirname(name) / found[1]).read_text(encoding="utf-8")
    return text


def first_sentence(text: str) -> str:
    """What a page is about: its first sentence that is prose, without markup."""
    prose = FENCED.sub("", text)
    for paragraph in re.split(r"\n\n+", prose):
        if re.match(r"[A-Z*`\[]", paragraph) and not paragraph.startswith(("| ", "- ")):
            words = re.sub(r"\s+", " ", re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph)).replace("**", "")
            return re.sub(r"(?<=[^.])\. .*", ".", words).rstrip(":.") + "."
    return ""
