"""The vocabulary of an imported translator: pieces of sentencepiece, and ids of its own for them."""

import base64
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import sentencepiece

from train.data.subwords import SPACE, PieceVocabulary
from train.data.vocabulary import EOS, SPECIAL, UNKNOWN, until_eos
from train.setting import ConfigError


class ForeignVocabulary(PieceVocabulary):
    """Tokens with the three that this program needs at their places: the first of the decoder, the end, the unknown.

    The place of <pad> has an ordinary token, since padding is never read. So each row of the weights stays one row.
    Text is cut by sentencepiece, or at spaces if there is no model of it. Before it, punctuation is normalised by
    Moses's rules, if that is how the model was trained. A text may begin with the target's language, as in `>>fra<<`,
    where the vocabulary has such tokens.
    """

    shortens = False

    def __init__(self, content: bytes) -> None:
        """Read the file that `write` made; ValueError if it is damaged."""
        self.model, self.sampling = content, 0.0
        try:
            fields = json.loads(content.decode())
            tokens, self.special, self.language = fields["tokens"], fields["special"], fields["moses"]
            pieces = None if fields["pieces"] is None else base64.b64decode(fields["pieces"], validate=True)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"it is no vocabulary of an imported model ({error})") from error
        if not all(isinstance(token, str) for token in tokens) or len(set(tokens)) != len(tokens):
            raise ValueError("its tokens must be different strings")
        self.original = [tokens[i] for i in range(len(tokens))]
        self.order = order(len(tokens), self.special)
        self._names = tuple(tokens[i] for i in self.order)
        self._ids = {token: i for i, token in enumerate(self._names)}
        self.languages = sorted(token for token in tokens if token.startswith(">>") and token.endswith("<<"))
        try:
            self._pieces: Any = None if pieces is None else sentencepiece.SentencePieceProcessor(model_proto=pieces)
        except (RuntimeError, OSError) as error:
            raise ValueError("it holds no model of sentencepiece") from error

    @staticmethod
    def write(tokens: Sequence[str], special: Sequence[int | None], pieces: bytes | None, moses: str | None) -> bytes:
        """Return the file of a vocabulary.

        Args:
            tokens: in the order of the model's own ids.
            special: its ids of the decoder's first token, None if it has none, of the end and of the unknown token.
            pieces: the model of sentencepiece.
            moses: the language by whose rules punctuation is normalised; None leaves it.
        """
        encoded = None if pieces is None else base64.b64encode(pieces).decode()
        fields = {"tokens": list(tokens), "special": list(special), "moses": moses, "pieces": encoded}
        return (json.dumps(fields, ensure_ascii=False, indent=0) + "\n").encode()

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        names = list(self._names)
        names[EOS], names[UNKNOWN] = SPECIAL[EOS], SPECIAL[UNKNOWN]
        return tuple(names)

    @cached_property
    def _normalize(self) -> Callable[[str], str]:
        if self.language is None:
            return str
        try:
            from sacremoses import MosesPunctNormalizer
        except ImportError:
            warnings.warn(
                "sacremoses is not installed, so that punctuation is read as it is and some translations differ; "
                "run: pip install sacremoses",
                stacklevel=2,
            )
            return str
        normalize: Callable[[str], str] = MosesPunctNormalizer(self.language).normalize
        return lambda text: normalize(text) if text else ""

    def cut(self, text: str) -> list[str]:
        found = list[str]()
        end = text.find("<<")
        if text.startswith(">>") and end > 0 and self.languages:
            language, text = text[: end + 2], text[end + 2 :]
            if language not in self._ids:
                raise ConfigError(f"the model knows no language {language}; it knows {', '.join(self.languages)}")
            found.append(language)
        text = self._normalize(text)
        return found + (text.split() if self._pieces is None else self._pieces.encode(text, out_type=str))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; the names of special tokens in it become <unk>."""
        ids = [self._ids.get(token, UNKNOWN) for token in self.cut(text)]
        return [UNKNOWN if i in (EOS, self._start) else i for i in ids]

    @property
    def _start(self) -> int | None:
        return None if self.special[0] is None else self.order.index(self.special[0])

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        tokens = [self.tokens[i] for i in until_eos(ids, len(self))]
        text = " ".join(tokens) if self._pieces is None else "".join(tokens).replace(SPACE, " ")
        return " ".join(text.split())

    def words(self, ids: Sequence[int]) -> list[range]:
        return [range(i, i + 1) for i in range(len(ids))] if self._pieces is None else super().words(ids)


def order(size: int, special: Sequence[int | None]) -> list[int]:
    """Return the model's own id for each id here: an ordinary token, the first, the end, the unknown, the others."""
    rest = [i for i in range(size) if i not in special]
    start = rest.pop(0) if special[0] is None else special[0]
    return [rest[0], start, *special[1:], *rest[1:]]  # type: ignore[list-item]
