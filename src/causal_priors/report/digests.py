"""Digests of what shapes the report and is no Python, so that an edit of it draws again: style file and templates."""

from pathlib import Path

from causal_priors.artifacts import digest_of, sha256_file

_HERE = Path(__file__).parent


def style_digest() -> str:
    """Digest of the style file of figures."""
    return sha256_file(_HERE / "style.mplstyle")


def template_digest() -> str:
    """Digest of the page's template and style sheet."""
    return digest_of(
        {path.name: sha256_file(path) for path in sorted((_HERE / "html").glob("page.*")) if path.suffix != ".py"}
    )
