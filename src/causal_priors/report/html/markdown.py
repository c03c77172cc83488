"""Markdown of the pipeline's own pages as HTML: headings, paragraphs, lists, tables, emphasis and code; no more.

It reads what this package writes, so it stays a page long; everything is escaped.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

_CODE, _EMPHASIS = re.compile(r"`([^`]+)`"), re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])")


def sections(text: str) -> list[tuple[str, str]]:
    """Return (heading, HTML) of each part under a heading of level two; what stands before them is left out."""
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        found.append((heading.strip(), "\n".join(_blocks(body.splitlines()))))
    return found


def _blocks(lines: Sequence[str]) -> Iterator[str]:
    for kind, group in groupby(lines, key=_kind):
        rows = list(group)
        if kind == "table":
            yield _table(rows)
        elif kind == "list":
            yield f"<ul>{''.join(f'<li>{inline(row[2:])}</li>' for row in rows)}</ul>"
        elif kind == "text":
            yield f"<p>{inline(' '.join(rows))}</p>"


def _kind(line: str) -> str:
    if not line.strip():
        return ""
    return "table" if line.startswith("|") else "list" if line.startswith("* ") else "text"


def _table(rows: Sequence[str]) -> str:
    head, _, *body = ([cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows)
    lines = ["<tr>" + "".join(f'<th scope="col">{inline(cell)}</th>' for cell in head) + "</tr>"]
    lines = ["<thead>", *lines, "</thead>", "<tbody>"]
    lines += ["<tr>" + "".join(f"<td>{inline(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return f'<div class="scroll" tabindex="0"><table>{"".join([*lines, "</tbody>"])}</table></div>'


def inline(text: str) -> str:
    """Return one line's text as HTML."""
    return _EMPHASIS.sub(r"<em>\1</em>", _CODE.sub(r"<code>\1</code>", escape(text, quote=False)))
