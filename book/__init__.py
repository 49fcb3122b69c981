"""The names of the d2l.ai book, so that its chapters run: `from book import jax as d2l`, or `torch`.

    data       what needs no framework: the translation data, vocabularies, BLEU
    jax        everything that the chapters on translation and attention call, over `jax_attn`
    torch      the same in PyTorch, over `torch_ref`; it imports no JAX
    jax_2020, torch_2020   the same names as the edition of 2020 means them
    arguments  the book's names of arguments in the library's errors
    pictures   the book's plots

Each name is thin. Its docstring says which edition calls it how, and what stands behind it. Three editions are meant:

    2020   0.7 and the first PyTorch port: `MLPAttention`, `train_s2s_ch9`, `predict_s2s_ch9`, `translate`
    0.17   0.15 to 0.17: `AdditiveAttention(key_size, query_size, …)`, `train_seq2seq`, `predict_seq2seq`
    1.0    `MTFraEng`, `Seq2Seq`, `Trainer`, `predict_step`, the Transformer

docs/book.md lists what differs from the book on purpose.
"""
