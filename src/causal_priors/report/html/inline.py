"""A matplotlib SVG as a part of a page: ids of its own, colours that follow the reader's scheme, the page's font."""

import re

from causal_priors.report.figures.colours import LIGHT

_ROOT = re.compile(r"<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)
_ID = re.compile(r'\sid="([^"]+)"')
_REFERENCE = re.compile(r'(?:xlink:)?href="#([^"]+)"|url\(#([^)]+)\)')
_FAMILY = re.compile(r"\s*font-family:[^;\"]*;")
_NO_TURN = re.compile(r' transform="rotate\(-?0(?: [^)]*)?\)"')
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_VARIABLES = {colour: f"var(--{name})" for name, colour in LIGHT.items()}


def inline_svg(text: str, prefix: str, title: str) -> str:
    """Return the SVG for a page on which `prefix` is this figure's alone. title: what a screen reader says."""
    head = _ROOT.search(text)
    assert head is not None
    body = text[head.end() : text.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = _FAMILY.sub("", _NO_TURN.sub("", body))
    referred = {first or second for first, second in _REFERENCE.findall(body)}
    body = _ID.sub(lambda match: f' id="{prefix}-{match[1]}"' if match[1] in referred else "", body)
    body = _REFERENCE.sub(
        lambda match: f'href="#{prefix}-{match[1]}"' if match[1] else f"url(#{prefix}-{match[2]})", body
    )
    body = _COLOUR.sub(lambda match: _VARIABLES.get(match[0], match[0]), body)
    body = re.sub(r"\n\s*", " ", re.sub(r"<defs>\s*</defs>", "", body))
    return f'<svg viewBox="{head[1]}" role="img" aria-label="{title}">{body}</svg>'
