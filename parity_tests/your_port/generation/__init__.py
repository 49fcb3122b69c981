"""Compare models that generate, token by token.

comparison    the call, and the bounds
decoder       a model as functions: what the user gives
hugging_face  the same, made of a model of transformers
sides         its runs in one framework
judge         what logits and tokens are held to, and what a difference looks like
report        what was found
"""
