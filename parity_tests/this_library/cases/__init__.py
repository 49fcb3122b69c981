"""The registry: every public name of jax_attn, with its PyTorch twin and its inputs.

The tests and `python -m parity_tests` read it. Inputs are seeded: random and ragged, with several keys (with one key
every weight is 1, whatever the score), a single key, an empty row in both meanings, scores of ±1e4, NaN where nothing
attends, more leading axes and none.
"""

from parity_tests.this_library.cases.functional import FUNCTIONAL_CASES
from parity_tests.this_library.cases.models import MODEL_CASES
from parity_tests.this_library.cases.modules import MODULE_CASES
from parity_tests.this_library.cases.transformer import TRANSFORMER_CASES
from parity_tests.this_library.cases.twins import TWIN_CASES
from parity_tests.your_port.measure.case import Case

CASES: tuple[Case, ...] = (
    *FUNCTIONAL_CASES,
    *MODULE_CASES,
    *MODEL_CASES,
    *TRANSFORMER_CASES,
    *TWIN_CASES,
)

IN_PYTHON = "the tests of `jax_attn.search` hold it against a search in plain Python"

WITHOUT_CASE: dict[str, str] = {
    **dict.fromkeys(("greedy_search", "beam_search", "sample_search", "ensemble"), IN_PYTHON),
    "SearchResult": "a record: the searches return it",
    "Memory": "a record: the attention modules are compared over one",
    "Attention": "the base class: each attention module is compared",
    "MLPAttention": "an older name of AdditiveAttention",
    "build_model": "makes the modules that are compared, of a record of settings",
    "EncoderOutput": "a record: Seq2SeqEncoder compares its fields",
    "DecoderMemory": "a record: Seq2SeqAttentionDecoder compares its initial state, and steps over it",
    "DecoderState": "a record: Seq2SeqAttentionDecoder compares its fields after a step",
    "show_heatmaps": "draws, and computes nothing",
    "show_alignments": "draws, and computes nothing",
    "DecoderKeepMasks": "a record of arguments: Seq2SeqAttentionDecoder is given one",
    "EncoderKeepMasks": "a record of arguments: Seq2SeqEncoder is given one",
    "Stationary": "a part of a state: TransformerDecoder steps over one, and its step equals teacher forcing",
    "TransformerState": "the cache of TransformerDecoder, whose steps are compared",
    "TransformerKeepMasks": "a record of arguments: TransformerEncoder and TransformerDecoder are given one",
    "KeepMasks": "a record of arguments: EncoderDecoder is given one",
}


def find_case(name: str) -> Case:
    """Return the case with this name."""
    return next(case for case in CASES if case.name == name)
