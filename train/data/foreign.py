"""The vocabulary of an imported translator: pieces of sentencepiece, and ids of its own for them."""

import base64
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import sentencepiece

from jax_attn.checkpoints.pretrained import Language
from train.data.subwords import SPACE, PieceVocabulary
from train.data.vocabulary import BOS, EOS, SPECIAL, UNKNOWN, Vocabulary, until_eos
from train.setting import ConfigError

SILENT = ("<pad>", "<mask>")
"""Tokens that are no part of a text, beside those of `SPECIAL` and the languages."""


class ForeignVocabulary(PieceVocabulary):
    """Tokens with the three that this program needs at their places: the first of the decoder, the end, the unknown.

    The place of <pad> has an ordinary token, since padding is never read. So each row of the weights stays one row.
    Text is cut by sentencepiece, or at spaces if there is no model of it. It may begin with the target's language, as
    in `>>fra<<`, where the vocabulary has such tokens. The first language that it does not have is a warning.

    In a model of M2M100's kind both sides begin with a token of their language instead: see `in_language`.
    """

    shortens = False

    def __init__(self, side: Language) -> None:
        """Take the tokens of a language; ValueError if they are no different strings, or the pieces damaged."""
        if not all(isinstance(token, str) for token in side.tokens) or len(set(side.tokens)) != len(side.tokens):
            raise ValueError("its tokens must be different strings")
        pieces = None if side.pieces is None else base64.b64encode(side.pieces).decode()
        fields = vars(side) | {"pieces": pieces}
        self.model, self.sampling = (json.dumps(fields, ensure_ascii=False, indent=0) + "\n").encode(), 0.0
        self.side = side
        rest = [i for i in range(len(side.tokens)) if i not in side.special]
        self.order = [rest[0], *side.special, *rest[1:]]
        """The model's own id for each id here."""
        self._names = tuple(side.tokens[i] for i in self.order)
        self.tokens = (*self._names[:EOS], *SPECIAL[EOS:], *self._names[len(SPECIAL) :])
        self._ids = {token: i for i, token in enumerate(self._names)}
        self._in_text = sorted(token for token in side.tokens if token.startswith(">>") and token.endswith("<<"))
        self._codes = {token.strip("_"): self._ids[token] for token in side.languages}
        self.languages = sorted(self._codes)
        self._language: str | None = None
        self._silent = {BOS, *self._codes.values()} | {self._ids[name] for name in SILENT if name in self._ids}
        self._has_warned = False
        try:
            self._pieces: Any = None
            if side.pieces is not None:
                self._pieces = sentencepiece.SentencePieceProcessor(model_proto=side.pieces)
        except (RuntimeError, OSError) as error:
            raise ValueError("it holds no model of sentencepiece") from error

    @classmethod
    def read(cls, content: bytes) -> "ForeignVocabulary":
        """Read the content of the vocabulary's file; ValueError if it is damaged."""
        fields = json.loads(content.decode())
        pieces = fields.pop("pieces")
        special = tuple(fields.pop("special"))
        return cls(Language(**fields, special=special, pieces=None if pieces is None else base64.b64decode(pieces)))

    def in_language(self, code: str) -> "ForeignVocabulary":
        if (language := code.strip("_")) not in self._codes:
            if not self._codes:
                return super().in_language(code)
            near = get_close_matches(language, self.languages, cutoff=0.4) or self.languages[:3]
            raise ConfigError(f"the model knows no language {code}; near it are {', '.join(near)}")
        found = copy(self)
        found._language = language
        return found

    @property
    def prefix(self) -> list[int]:
        if self._codes and self._language is None:
            raise ConfigError(
                f"the model knows {len(self.languages)} languages, {', '.join(self.languages[:3])} … "
                f"{self.languages[-1]}; choose two with --source-language CODE --target-language CODE"
            )
        return [self._codes[self._language]] if self._language else []

    @cached_property
    def _normalize(self) -> Callable[[str], str]:
        if self.side.moses is None:
            return str
        try:
            from sacremoses import MosesPunctNormalizer
        except ImportError:
            warnings.warn(
                "sacremoses is not installed, so that punctuation is read as it is and some translations differ; "
                "run: pip install 'jax-attn[pretrained]'",
                stacklevel=2,
            )
            return str
        normalize: Callable[[str], str] = MosesPunctNormalizer(self.side.moses).normalize
        return lambda text: normalize(text) if text else ""

    def cut(self, text: str) -> list[str]:
        found = list[str]()
        if self._in_text and (begins := re.match(r"\s*(>>[^\s<>]+<<)", text)):
            language, text = begins[1], text[begins.end() :]
            if language not in self._ids and not self._has_warned:
                self._has_warned = True
                known = ", ".join(self._in_text)
                warnings.warn(
                    f"the model knows no language {language}, and reads <unk>; it knows {known}", stacklevel=2
                )
            found.append(language)
        text = self._normalize(text)
        return found + (self._pieces.encode(text, out_type=str) if self._pieces else text.split())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; the names of special tokens in it become <unk>."""
        ids = [self._ids.get(token, UNKNOWN) for token in self.cut(text)]
        return [UNKNOWN if i == EOS or i in self._silent else i for i in ids]

    encode_all = Vocabulary.encode_all  # since `encode` does more than cut into pieces

    def decode(self, ids: Iterable[int]) -> str:
        tokens = [self.tokens[i] for i in until_eos(ids, len(self)) if i not in self._silent]
        text = "".join(tokens).replace(SPACE, " ") if self._pieces else " ".join(tokens)
        return " ".join(text.split())

    def words(self, ids: Sequence[int]) -> list[range]:
        return super().words(ids) if self._pieces else Vocabulary.words(self, ids)
