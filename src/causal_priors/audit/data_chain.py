"""The first links: archives, texts, index, split, tokenizer, shards, margins.

Each stage names what it was made from by a digest of its content, which is computed anew here from the stage before.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.artifacts import read_json, sha256_bytes, sha256_file
from causal_priors.audit.evidence import Evidence, dict_of
from causal_priors.audit.findings import Link, Report
from causal_priors.data.archives import GPT2, KING_JAMES, SHAKESPEARE
from causal_priors.data.corpus import ARCHIVES, TEXT, extract_documents, read_corpus_card
from causal_priors.data.documents import iter_documents
from causal_priors.data.shards import CARD, DOCUMENTS, FILES, HELDOUT, TRAIN, card_digest, open_shards
from causal_priors.data.split import DUPLICATE, CorpusDigest, hold_out
from causal_priors.data.tokenizer import load_tokenizer
from causal_priors.errors import UserError, refuse
from causal_priors.remedies import rebuild
from causal_priors.scale import Scale
from causal_priors.tables import iter_table
from causal_priors.theory.margin import margin_stage

INDEX, TOKENIZER, SHARDS, MARGINS = "data/index.parquet", "data/tokenizer.json", "data/shards", "theory/margins.json"


@dataclass(frozen=True)
class Index:
    """The corpus index: per document its name, bytes, sha256 and split, in corpus order."""

    rows: list[tuple[str, int, str, str]]

    def digest(self) -> str:
        """What a tokenizer and shards say they were made from."""
        digest = CorpusDigest()
        for name, _, sha256, split in self.rows:
            if split != DUPLICATE:
                digest.add(name, sha256, split)
        return digest.hexdigest()


def check_data(report: Report, evidence: Evidence, scale: Scale, texts: Path | None, column: str) -> None:
    """Add the links from archives to margins."""
    index = _index(report, evidence)
    never: frozenset[str] = frozenset()
    if evidence.corpus_card is not None:
        never = _corpus(report.link("archives -> corpus"), evidence, evidence.corpus_card)
    _texts(report.link("corpus -> index"), evidence, index, texts, column)
    if index is not None:
        _split(report.link("index -> split"), evidence, index, never)
    tokenizer = _tokenizer(report.link("index -> tokenizer"), evidence, scale, index)
    _shards(report.link("tokenizer -> shards"), evidence, scale, index, tokenizer)
    _margins(report.link("scale -> margins"), evidence, scale)


def _index(report: Report, evidence: Evidence) -> Index | None:
    path = evidence.file(INDEX)
    if not path.is_file():
        report.link("index").absent(path, "is not there", evidence.rebuild(INDEX))
        return None
    rows: list[tuple[str, int, str, str]] = []
    try:
        for part in iter_table(path, "corpus", evidence.rebuild(INDEX)):
            rows += zip(part["document"], part["bytes"], part["sha256"], part["split"], strict=True)
    except UserError as error:
        report.link("index").fail(error)
        return None
    return Index(rows)


def _corpus(link: Link, evidence: Evidence, card: Path) -> frozenset[str]:
    """The default corpus's texts against its archives. Returns the documents that are never held out."""
    again = evidence.rebuild(str(card.relative_to(evidence.folder))) if evidence.snapshot else rebuild(card)
    with link.reading():
        documents, never = read_corpus_card(card)
        folder = card.parent / ARCHIVES
        found = [folder / archive.file for archive in (SHAKESPEARE, KING_JAMES)]
        if not all(path.is_file() for path in found):
            link.absent(folder, "the two archives are not there", again)
            return never
        for path, archive in zip(found, (SHAKESPEARE, KING_JAMES), strict=True):
            link.expect(sha256_file(path) == archive.sha256, path, "is another archive", f"remove {path}")
        if link.broken:
            return never
        texts = {name: sha256_bytes(text.encode()) for name, text in extract_documents(*found).items()}
        for name in sorted({*texts, *documents}):
            same = texts.get(name) == documents.get(name)
            link.expect(same, f"{card}: {name}", "is not the text of the archives", again)
        return never
    return frozenset()


def _texts(link: Link, evidence: Evidence, index: Index | None, texts: Path | None, column: str) -> None:
    """Texts against the index; where they are not there, the corpus card against it."""
    if index is None:
        return link.absent(evidence.file(INDEX), "is not there", evidence.rebuild(INDEX))
    card = evidence.corpus_card
    folder = texts or (card.parent / TEXT if card is not None else None)
    expected: Mapping[str, str] = {name: sha256 for name, _, sha256, _ in index.rows}
    with link.reading():
        if folder is not None and folder.is_dir():
            found = {one.name: sha256_bytes(one.text.encode()) for one in iter_documents(folder, column)}
            where = folder
        elif card is not None:
            found, where = read_corpus_card(card)[0], card
            link.absent(card.parent / TEXT, "the texts are not there: only their digests were compared")
        else:
            return link.absent(evidence.file(INDEX), "its texts are not known", "name their folder: --texts FOLDER")
        for name in sorted({*found, *expected}):
            same = found.get(name) == expected.get(name)
            link.expect(same, where / name, "is not the text that was indexed", evidence.rebuild(INDEX))
    return None


def _split(link: Link, evidence: Evidence, index: Index, never: frozenset[str]) -> None:
    """The split of the index against the rule. Which of its two forms applied is a key of the config."""
    seen: set[str] = set()
    labels, kept = [], []
    for place, (_, _, sha256, _) in enumerate(index.rows):
        labels.append(DUPLICATE if sha256 in seen else TRAIN)
        if sha256 not in seen:
            kept.append(place)
        seen.add(sha256)
    names = [hashlib.sha256(index.rows[place][0].encode()).digest() for place in kept]
    sizes = [index.rows[place][1] for place in kept]
    spared = [i for i, place in enumerate(kept) if index.rows[place][0] in never]
    found = [split for *_, split in index.rows]
    wanted = []
    for need_long in (True, False):
        again = list(labels)
        for chosen in hold_out(names, sizes, spared, need_long=need_long):
            again[kept[chosen]] = HELDOUT
        wanted.append(again)
    link.checked += len(found)
    if found not in wanted:
        closest = min(wanted, key=lambda rule: sum(map(str.__ne__, rule, found)))
        wrong = next(i for i, split in enumerate(found) if split != closest[i])
        problem = f"{index.rows[wrong][0]} is {found[wrong]}, by the rule {closest[wrong]}"
        link.expect(False, evidence.file(INDEX), problem, evidence.rebuild(INDEX))


def _tokenizer(link: Link, evidence: Evidence, scale: Scale, index: Index | None) -> str | None:
    """The tokenizer against the index. Returns the digest by which shards name it."""
    path = evidence.file(TOKENIZER)
    if not path.is_file():
        link.absent(path, "is not there", evidence.rebuild(TOKENIZER))
        return None
    remedy = evidence.rebuild(TOKENIZER)
    with link.reading():
        tokenizer = load_tokenizer(path)
        origin = read_json(path)["origin"]
        link.expect(tokenizer.vocabulary <= scale.vocabulary, path, "has more ids than the scale", remedy)
        if scale.tokenizer == "gpt2":
            link.expect(origin == {"archive": GPT2.sha256}, path, "was made from another archive", remedy)
        elif index is not None:
            link.expect(origin == {"corpus": index.digest()}, path, "was made from another corpus or split", remedy)
        return tokenizer.digest
    return None


def _shards(link: Link, evidence: Evidence, scale: Scale, index: Index | None, tokenizer: str | None) -> None:
    path, remedy = evidence.file(SHARDS), evidence.rebuild(f"{SHARDS}/{CARD}")
    if not (path / CARD).is_file():
        return link.absent(path / CARD, "is not there", remedy)
    with link.reading():
        if all((path / name).is_file() for name in FILES.values()):
            card = open_shards(path).card
            link.checked += len(FILES) + 1
        else:
            card = _card(path, remedy)
            link.absent(path, f"{' and '.join(FILES.values())} are not there", remedy)
            same = sha256_file(path / DOCUMENTS) == card["files"][DOCUMENTS]["sha256"]
            link.expect(same, path / DOCUMENTS, "differs from the digest in card.json", remedy)
        if index is not None:
            link.expect(card["corpus"] == index.digest(), path / CARD, "is of another corpus or split", remedy)
            _documents(link, path, card, index, remedy)
        if tokenizer is not None:
            link.expect(card["tokenizer"] == tokenizer, path / CARD, "is of another tokenizer", remedy)
        link.expect(card["ids"] <= scale.vocabulary, path / CARD, "has more ids than the scale", remedy)
    return None


def _card(folder: Path, remedy: str) -> dict[str, Any]:
    """The card of shards whose files are not there, which `open_shards` would ask for."""
    card = dict_of(read_json(folder / CARD, remedy), folder / CARD)
    if card.get("digest") != card_digest(card):
        raise refuse("is damaged (its digest differs)", file=folder / CARD, remedy=remedy)
    for name in (*FILES.values(), DOCUMENTS):
        dict_of(dict_of(card.get("files"), folder / CARD).get(name), f"{folder / CARD}: {name}")
    return card


def _documents(link: Link, folder: Path, card: dict[str, Any], index: Index, remedy: str) -> None:
    """Every document of the index lies in its split's file, one after another, each followed by end-of-text."""
    expected = [(name, split, sha256) for name, _, sha256, split in index.rows if split != DUPLICATE]
    found, ends = [], {TRAIN: 0, HELDOUT: 0}
    contiguous = True
    for part in iter_table(folder / DOCUMENTS, "documents", remedy):
        rows = zip(part["document"], part["split"], part["sha256"], part["offset"], part["tokens"], strict=True)
        for name, split, sha256, offset, tokens in rows:
            found.append((name, split, sha256))
            contiguous &= split in ends and offset == ends[split]
            ends[split] = offset + tokens + 1
    link.expect(found == expected, folder / DOCUMENTS, "lists other documents than the index", remedy)
    for split, name in FILES.items():
        whole = contiguous and ends[split] * 2 == card["files"][name]["bytes"]
        link.expect(whole, folder / DOCUMENTS, f"does not account for every id of {name}", remedy)


def _margins(link: Link, evidence: Evidence, scale: Scale) -> None:
    path, remedy = evidence.file(MARGINS), evidence.rebuild(MARGINS)
    if not path.is_file():
        return link.absent(path, "is not there", remedy)
    with link.reading(), tempfile.TemporaryDirectory() as temporary:
        again = Path(temporary) / "margins.json"
        margin_stage(scale, again)
        link.expect(read_json(path) == read_json(again), path, "differs from what theory gives", remedy)
    return None
